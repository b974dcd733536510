# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Seconds of a drafted round by rows and of a plain step, on a request's own hidden states.

Reading a block leaves every committed state as it was, so a request can be measured without being
moved: the rounds here are real ones that stop short of settle and commit.
"""

import statistics
import time

import torch
from torch import Tensor

from hybridspec.engine.graph import Captured
from hybridspec.engine.round import Rounds
from hybridspec.policy.latency import Latency

REPEATS = 5
"""rounds of each kind, after one to warm up; kinds take turns: a slow moment hits all"""


@torch.inference_mode()
def measure(rounds: Rounds, block_size: int) -> Latency:
    """Medians at the request's context: drafted rounds of 1 to block_size rows, a plain step."""
    samples: list[list[float]] = [[] for _ in range(block_size + 1)]
    ledger, count = rounds.request.ledger, rounds.request.one.clone()
    plain_step = Captured(lambda: _plain(rounds), count.device)
    drafted_round = Captured(lambda: _drafted(rounds, count), count.device)
    plain_step.prepare()
    drafted_round.prepare()
    for repeat in range(REPEATS + 1):
        for rows, own in enumerate(samples):
            count.fill_(rows)
            int(ledger.rounds)  # what is under way has ended
            begun = time.perf_counter()
            run = drafted_round if rows else plain_step
            run()
            int(ledger.rounds)
            if repeat:
                own.append(time.perf_counter() - begun)
    plain, *drafted = [statistics.median(own) for own in samples]
    context = int(ledger.length)
    return Latency.measured({context: drafted}, plain={context: plain})


def _plain(rounds: Rounds) -> None:
    _read(rounds, rounds.request.ledger.anchor.view(1), rounds.request.one)


def _drafted(rounds: Rounds, rows: Tensor) -> None:
    request = rounds.request
    assert rounds.drafter is not None
    assert request.draft is not None
    _read(rounds, rounds.drafter.propose(request.ledger.anchor, request.draft).tokens, rows)


def _read(rounds: Rounds, tokens: Tensor, rows: Tensor) -> None:
    """What a round does between draft and settle."""
    target, state = rounds.target, rounds.request.target
    target.read_on(target.read_to_router(tokens, rows, state), rows, state)
