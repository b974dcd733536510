# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""The clock of a captured round: two programs of one warp, which read the device's global timer.

Neither begins before the launch ahead has ended, as what they time would not be done. What
`choose` makes of it: kernels/length.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, globaltimer

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.launch import INTERPRETED, check_tensor, overlaps
from hybridspec.kernels.reference.clock import CLOCK_MEMORY, LARGEST_RATIO, Clock


@triton.jit
def _now(IS_TIMED: tl.constexpr):
    """Nanoseconds; the interpreter has no timer, and it is always the first second."""
    return globaltimer() if IS_TIMED else tl.full([], 1_000_000_000, tl.int64)


@triton.jit
def _begin_kernel(begun, IS_TIMED: tl.constexpr, OVERLAPS: tl.constexpr):
    if OVERLAPS:
        gdc_launch_dependents()
    tl.store(begun, _now(IS_TIMED))


@triton.jit
def _observe_kernel(
    begun, expected, ratios, weights, taken, rows,
    BLOCK: tl.constexpr, N: tl.constexpr, MEMORY: tl.constexpr, LARGEST: tl.constexpr,
    IS_TIMED: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_launch_dependents()
    now, since, n = _now(IS_TIMED), tl.load(begun), tl.load(rows)
    tl.store(begun, tl.zeros([], tl.int64))
    is_round = (n > 0) & (since > 0)
    seconds = (now - since).to(tl.float32) * 1e-9
    ratio = seconds / tl.load(expected + n - 1, mask=is_round, other=1.0)
    learns = is_round & (ratio < LARGEST) & (ratio * LARGEST > 1)
    tl.store(taken, tl.where(learns, seconds, 0.0))
    lane = tl.arange(0, N)
    inside = (lane < BLOCK) & learns
    is_own = lane == n - 1
    b_ratios = tl.load(ratios + lane, mask=inside, other=0.0)
    b_weights = tl.load(weights + lane, mask=inside, other=0.0)
    tl.store(ratios + lane, MEMORY * b_ratios + tl.where(is_own, ratio, 0.0), mask=inside)
    tl.store(weights + lane, MEMORY * b_weights + tl.where(is_own, 1.0, 0.0), mask=inside)


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
    _begin_kernel[(1,)](clock.begun, IS_TIMED=not INTERPRETED, **_modes(clock))


def observe(clock: Clock, rows: Tensor) -> None:
    """Contract of the reference. Raises ShapeError that names what does not fit."""
    block = clock.expected.numel()
    check_clock(clock, block)
    check_tensor("rows", rows, (), torch.int32)
    _observe_kernel[(1,)](
        clock.begun, clock.expected, clock.ratios, clock.weights, clock.taken, rows,
        BLOCK=block, N=MAX_ROWS, MEMORY=CLOCK_MEMORY, LARGEST=LARGEST_RATIO,
        IS_TIMED=not INTERPRETED, **_modes(clock),
    )  # fmt: skip


def _modes(clock: Clock) -> dict[str, int]:
    return {"OVERLAPS": overlaps(clock.begun.device), "num_warps": 1}


def check_clock(clock: Clock, block: int) -> None:
    """Raises ShapeError that names what does not fit a block."""
    check_tensor("begun", clock.begun, (), torch.int64)
    check_tensor("taken", clock.taken, (), torch.float32)
    for name in ("expected", "ratios", "weights"):
        check_tensor(name, getattr(clock, name), (block,), torch.float32)
