# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""The clock of a captured round: a program of one warp reads the device's global timer.

It does not begin before the launch ahead has ended. When the rows have been read `settle` looks at
the same timer (kernels/accept.py). What that teaches is a part of kernels/learning.py, and what
`choose` makes of it one of kernels/length.py.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, globaltimer

from hybridspec.kernels.launch import INTERPRETED, check_tensor, overlaps
from hybridspec.kernels.reference.clock import Clock


@triton.jit
def now(IS_TIMED: tl.constexpr):
    """Nanoseconds; the interpreter has no timer, and it is always the first second."""
    return globaltimer() if IS_TIMED else tl.full([], 1_000_000_000, tl.int64)


@triton.jit
def _begin_kernel(begun, IS_TIMED: tl.constexpr, OVERLAPS: tl.constexpr):
    if OVERLAPS:
        gdc_launch_dependents()
    tl.store(begun, now(IS_TIMED))


@triton.jit
def seconds_taken(
    begun, settled, expected, ratios, weights, taken, rows,
    BLOCK: tl.constexpr, N: tl.constexpr, MEMORY: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """What `observe` of the reference does; the seconds, 0 where they are none to learn from."""
    since, n = tl.load(begun), tl.load(rows)
    tl.store(begun, tl.zeros([], tl.int64))
    is_round = (n > 0) & (since > 0)
    seconds = (tl.load(settled) - since).to(tl.float32) * 1e-9
    ratio = seconds / tl.load(expected + n - 1, mask=is_round, other=1.0)
    learns = is_round & (ratio < LARGEST) & (ratio * LARGEST > 1)
    seconds = tl.where(learns, seconds, 0.0)
    tl.store(taken, seconds)
    lane = tl.arange(0, N)
    inside = (lane < BLOCK) & learns
    is_own = lane == n - 1
    b_ratios = tl.load(ratios + lane, mask=inside, other=0.0)
    b_weights = tl.load(weights + lane, mask=inside, other=0.0)
    tl.store(ratios + lane, MEMORY * b_ratios + tl.where(is_own, ratio, 0.0), mask=inside)
    tl.store(weights + lane, MEMORY * b_weights + tl.where(is_own, 1.0, 0.0), mask=inside)
    return seconds


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def refreshed(seconds, ratios, weights, lane, inside, PRIOR: tl.constexpr):
    """The table's seconds [N] of 1, 2, ... rows as rounds took them; lane n - 1: n rows."""
    b_ratios = tl.load(ratios + lane, mask=inside, other=0.0)
    b_weights = tl.load(weights + lane, mask=inside, other=0.0)
    mean = tl.div_rn(tl.sum(b_ratios, 0) + PRIOR, tl.sum(b_weights, 0) + PRIOR)
    own = seconds * tl.div_rn(b_ratios + PRIOR * mean, b_weights + PRIOR)
    return tl.associative_scan(tl.where(inside, own, 0.0), 0, _larger)


def begin(clock: Clock) -> None:
    """Contract of the reference."""
    check_clock(clock, clock.expected.numel())
    _begin_kernel[(1,)](
        clock.begun, IS_TIMED=not INTERPRETED, OVERLAPS=overlaps(clock.begun.device), num_warps=1
    )


def check_clock(clock: Clock, block: int) -> None:
    """Raises ShapeError that names what does not fit a block."""
    check_tensor("begun", clock.begun, (), torch.int64)
    check_tensor("taken", clock.taken, (), torch.float32)
    for name in ("expected", "ratios", "weights"):
        check_tensor(name, getattr(clock, name), (block,), torch.float32)
