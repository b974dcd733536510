# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Seconds of a drafted round by rows and of a plain step, on a request's own hidden states.

Reading a block leaves every committed state as it was, so a request can be measured without being
moved: the rounds here are real ones that stop short of settle and commit.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hybridspec.engine.graph import Captured
from hybridspec.engine.round import Rounds
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.policy.latency import Latency
from hybridspec.policy.routing import RoutingCosts

REPEATS = 5
"""rounds of each kind, after one to warm up; kinds take turns: a slow moment hits all"""


@torch.inference_mode()
def measure(rounds: Rounds, block_size: int, repeats: int = REPEATS) -> Latency:
    """Medians at the request's context: drafted rounds of 1 to block_size rows, a plain step."""
    samples: list[list[float]] = [[] for _ in range(block_size + 1)]
    ledger, count = rounds.request.ledger, rounds.request.one.clone()
    plain_step = Captured(lambda: _plain(rounds), count.device)
    drafted_round = Captured(lambda: _drafted(rounds, count), count.device)
    plain_step.prepare()
    drafted_round.prepare()
    for repeat in range(repeats + 1):
        for rows, own in enumerate(samples):
            count.fill_(rows)
            spent = _timed(drafted_round if rows else plain_step, ledger)
            if repeat:
                own.append(spent)
    plain, *drafted = [statistics.median(own) for own in samples]
    context = int(ledger.length)
    return Latency.measured({context: drafted}, plain={context: plain})


@torch.inference_mode()
def measure_routing(
    rounds: Rounds, block_size: int, moves: Sequence[Callable[[], object]]
) -> RoutingCosts | None:
    """What rows and experts cost, by the blocks that are drafted after each of `moves`.

    In a text, experts come with rows, and which of the two costs cannot be told well. So every
    length is read once more with rows that repeat the anchor and meet few experts. The anchor and
    the length are put back. None without moves, and where the target counts no experts (on a CPU).
    """
    target, ledger = rounds.target, rounds.request.ledger
    if target.fetched is None or not moves:
        return None
    count = rounds.request.one.clone()
    before = ledger.anchor.clone(), ledger.length.clone()
    kinds = [
        Captured(lambda: _drafted(rounds, count), count.device),
        Captured(lambda: _repeated(rounds, count, block_size), count.device),
    ]
    for kind in kinds:
        kind.prepare()
    shape = len(kinds), len(moves), block_size
    seconds = torch.empty(shape)
    fetched = torch.empty(*shape, len(target.fetched), dtype=torch.int32)
    for block, move in enumerate(moves):
        move()
        for kind, rows in itertools.product(range(len(kinds)), range(1, block_size + 1)):
            count.fill_(rows)
            seconds[kind, block, rows - 1] = _timed(kinds[kind], ledger)
            fetched[kind, block, rows - 1] = target.fetched
    ledger.anchor.copy_(before[0])
    ledger.length.copy_(before[1])
    return RoutingCosts.fitted(seconds.flatten(0, 1), fetched.flatten(0, 1), of_text=len(moves))


def after_tokens(rounds: Rounds, text: Sequence[int], places: int) -> list[Callable[[], object]]:
    """Moves for `measure_routing`: as many tokens from all over a text as anchors."""
    anchor = rounds.request.ledger.anchor
    chosen = text[:: max(1, len(text) // places)][:places]
    return [partial(anchor.fill_, token) for token in chosen]


@torch.inference_mode()
def measure_draft(rounds: Rounds, repeats: int = REPEATS) -> float:
    """Median seconds of the draft alone. Changes nothing."""
    request, drafter = rounds.request, rounds.drafter
    assert drafter is not None
    assert request.draft is not None
    draft = request.draft
    return _median(lambda: drafter.propose(request.ledger.anchor, draft), rounds, repeats)


@torch.inference_mode()
def spend_commits(rounds: Rounds, block_size: int, repeats: int = REPEATS) -> float:
    """Median seconds of committing block_size rows. The request is spoilt: its states move on."""
    count = torch.full_like(rounds.request.one, block_size)
    _drafted(rounds, count)  # leaves the records that commit replays
    return _median(lambda: rounds.request.target.commit(count), rounds, repeats)


def _median(run: Callable[[], object], rounds: Rounds, repeats: int) -> float:
    ledger, own = rounds.request.ledger, list[float]()
    captured = Captured(run, ledger.anchor.device)
    captured.prepare()
    for repeat in range(repeats + 1):
        spent = _timed(captured, ledger)
        if repeat:
            own.append(spent)
    return statistics.median(own)


def _timed(run: Callable[[], object], ledger: Ledger) -> float:
    """Seconds of one run, its work on the device included."""
    int(ledger.rounds)  # what is under way has ended
    begun = time.perf_counter()
    run()
    int(ledger.rounds)
    return time.perf_counter() - begun


def _plain(rounds: Rounds) -> None:
    _read(rounds, rounds.request.ledger.anchor.view(1), rounds.request.one)


def _drafted(rounds: Rounds, rows: Tensor) -> None:
    request = rounds.request
    assert rounds.drafter is not None
    assert request.draft is not None
    _read(rounds, rounds.drafter.propose(request.ledger.anchor, request.draft).tokens, rows)


def _repeated(rounds: Rounds, rows: Tensor, block_size: int) -> None:
    """The same with the anchor in the place of every draft."""
    request = rounds.request
    assert rounds.drafter is not None
    rounds.drafter.propose(request.ledger.anchor, request.draft)
    _read(rounds, request.ledger.anchor.repeat(block_size), rows)


def _read(rounds: Rounds, tokens: Tensor, rows: Tensor) -> None:
    """What a round does between draft and settle."""
    target, state = rounds.target, rounds.request.target
    target.read_on(target.read_to_router(tokens, rows, state), rows, state)
