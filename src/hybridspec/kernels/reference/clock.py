# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How long rounds really take, beside what a table says, and the table put right by it.

Each drafted round is timed where it runs, from before its draft until its last row is read: what
T(n, c) stands for. The ratio to the table's seconds is kept by rows, and older rounds count less. A
length that was taken often has its own ratio; one that was not has that of all rounds.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

CLOCK_MEMORY = 0.98
"""share of the past that a round leaves: about 50 rounds"""
PRIOR = 4.0
"""rounds for which the mean of all stands, beside those of a length"""
LARGEST_RATIO = 8.0
"""a round that took more of the table's seconds, or less than their reciprocal, is not one: it was
compiled, or the machine slept"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """What was measured of rounds, on the device; they write it in place."""

    begun: Tensor
    """[] int64: nanoseconds of a clock that only rises; 0 while no round is under way"""
    expected: Tensor
    """[BLOCK] float32: the table's seconds of 1, 2, ... rows at this round's context"""
    ratios: Tensor
    """[BLOCK] float32: by rows, seconds taken by seconds expected, older rounds for less"""
    weights: Tensor
    """[BLOCK] float32: rounds in them, likewise"""
    taken: Tensor
    """[] float32: seconds of the last round; 0 where they were none to learn from"""

    @classmethod
    def empty(cls, block: int, device: torch.device | str) -> "Clock":
        """Before the first round."""

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            begun=zeros(dtype=torch.int64),
            expected=zeros(block),
            ratios=zeros(block),
            weights=zeros(block),
            taken=zeros(),
        )


def begin(clock: Clock) -> None:
    """A round begins now."""
    clock.begun.fill_(time.perf_counter_ns())


def observe(clock: Clock, rows: Tensor, settled: Tensor) -> None:
    """The round has read its rows. Its seconds are learnt.

    rows    [] int32   0 are no round
    settled [] int64   when they had been read, nanoseconds of the clock that `begin` looked at
    """
    n, begun = int(rows), int(clock.begun)
    clock.begun.zero_()
    clock.taken.zero_()
    if n < 1 or begun < 1:
        return
    seconds = (int(settled) - begun) * 1e-9
    if learn_ratio(clock, n, seconds / float(clock.expected[n - 1])):
        clock.taken.fill_(seconds)


def learn_ratio(clock: Clock, n: int, ratio: float) -> bool:
    """A round of n rows took `ratio` times what the table says; False: it was none."""
    if not 1 / LARGEST_RATIO < ratio < LARGEST_RATIO:
        return False
    for sums, one in ((clock.ratios, ratio), (clock.weights, 1.0)):
        sums.mul_(CLOCK_MEMORY)
        sums[n - 1] += one
    return True


def refreshed(seconds: Tensor, clock: Clock) -> Tensor:
    """The table's seconds [BLOCK] times the ratios that were met; never falling with the rows."""
    ratios, weights = clock.ratios, clock.weights
    mean = (ratios.sum() + PRIOR) / (weights.sum() + PRIOR)
    return (seconds * ((ratios + PRIOR * mean) / (weights + PRIOR))).cummax(0).values
