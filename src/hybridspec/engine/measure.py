# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""T(n): seconds of draft and verification, measured on a request's own hidden states.

Reading a block leaves every committed state as it was, so a request can be measured without being
moved: the rounds here are real ones that stop short of the commit.
"""

import statistics
import time

import torch

from hybridspec.engine.round import Rounds

REPEATS = 5
"""rounds of each length, after one to warm up; lengths take turns: a slow moment hits all"""


@torch.inference_mode()
def measure_seconds(rounds: Rounds, block_size: int) -> list[float]:
    """Median seconds of a drafted round with 1, 2, ... block_size rows at the request's context."""
    samples: list[list[float]] = [[] for _ in range(block_size)]
    for repeat in range(REPEATS + 1):
        for rows in range(1, block_size + 1):
            begun = time.perf_counter()
            _read_only(rounds, rows)
            if repeat:
                samples[rows - 1].append(time.perf_counter() - begun)
    return [statistics.median(row) for row in samples]


def _read_only(rounds: Rounds, rows: int) -> None:
    request = rounds.request
    assert rounds.drafter is not None
    assert request.draft is not None
    count = torch.tensor(rows, dtype=torch.int32, device=request.anchor.device)
    block = rounds.drafter.propose(request.anchor, request.draft)
    routed = rounds.target.read_to_router(block.tokens, count, request.target)
    reading = rounds.target.read_on(routed, count, request.target)
    reading.tokens.tolist()  # waits for the device
