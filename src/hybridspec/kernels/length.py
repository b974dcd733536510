# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""The choice of a captured round in a program of one warp.

It replaces dozens of launches and the reference's questions to the host, and moves under 4 KiB.
Lane n - 1 of a warp stands for n rows: S_0 = 1 is the anchor, so that A(n) is a running sum over
lanes.

What a reader gets wrong: one warp is not a matter of speed. Numbers are read and rewritten in
place, and the loads of a second warp could come after the stores of the first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.clock import check_clock, refreshed
from hybridspec.kernels.exploration import check_exploration, explored_rows
from hybridspec.kernels.gdn.rows import sigmoid
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps
from hybridspec.kernels.reference import exploration as labels
from hybridspec.kernels.reference.clock import PRIOR
from hybridspec.kernels.reference.length import LengthState, LengthTables


@triton.jit
def first_best(values, lane, N: tl.constexpr):
    """The lowest lane of the largest value; NaN is never best."""
    values = tl.where(values == values, values, float("-inf"))
    return tl.min(tl.where(values == tl.max(values, 0), lane, N - 1), 0)


@triton.jit
def _seconds_at(contexts, seconds, length, lane, inside, C, BLOCK, BLOCK_C: tl.constexpr):
    """Linear between the measured contexts on both sides of `length`, flat outside; [N]."""
    i_c = tl.arange(0, BLOCK_C)
    b_contexts = tl.load(contexts + i_c, mask=i_c < C, other=0)
    place = tl.sum(((i_c < C) & (b_contexts <= length)).to(tl.int32), 0)
    low, high = tl.maximum(place - 1, 0), tl.minimum(place, C - 1)
    begin, end = tl.load(contexts + low), tl.load(contexts + high)
    span = tl.maximum(end - begin, 1).to(tl.float32)
    share = tl.where(low == high, 0.0, tl.div_rn((length - begin).to(tl.float32), span))
    b_low = tl.load(seconds + low * BLOCK + lane, mask=inside, other=1.0)
    b_high = tl.load(seconds + high * BLOCK + lane, mask=inside, other=1.0)
    return b_low + share * (b_high - b_low)


@triton.jit
def _choose_kernel(
    log_odds, slope, intercepts, contexts, seconds, kappa, rate_tokens, rate_seconds, survival,
    costs, length, budget, is_done, rows, shown, clock_expected, clock_ratios, clock_weights,
    whole, purse, spent, explored, reached, trial, asked,
    BLOCK: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr, N: tl.constexpr,
    ABOVE: tl.constexpr, PRIOR: tl.constexpr, EXPLORES: tl.constexpr, MORE: tl.constexpr,
    LEAST: tl.constexpr, TRIAL: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    lane = tl.arange(0, N)
    inside = lane < BLOCK
    is_draft = inside & (lane > 0)
    lives = tl.load(is_done) == 0
    b_odds = tl.load(log_odds + lane - 1, mask=is_draft, other=0.0)
    b_intercept = tl.load(intercepts + lane - 1, mask=is_draft, other=0.0)
    b_alone = sigmoid(tl.load(slope) * b_odds + b_intercept)
    counts = is_draft & (lane < tl.load(budget)) & (b_alone == b_alone)
    b_survival = tl.cumprod(tl.where(lane == 0, 1.0, tl.where(counts, b_alone, 0.0)), 0)
    b_expected = tl.cumsum(b_survival, 0)
    b_costs = _seconds_at(contexts, seconds, tl.load(length), lane, inside, C, BLOCK, BLOCK_C)
    if PRIOR > 0:
        tl.store(clock_expected + lane, b_costs, mask=inside & lives)
        b_costs = refreshed(b_costs, clock_ratios, clock_weights, lane, inside, PRIOR)
    tl.store(survival + lane - 1, b_survival, mask=is_draft & lives)
    tl.store(costs + lane, b_costs, mask=inside & lives)
    # a run without a rate starts from the best one that this round promises
    b_ratio = tl.where(inside, tl.div_rn(b_expected, b_costs), float("-inf"))
    is_start = lane == first_best(b_ratio, lane, N)
    past_tokens, past_seconds = tl.load(rate_tokens), tl.load(rate_seconds)
    has_rate = past_seconds > 0
    now_tokens = tl.where(has_rate, past_tokens, tl.sum(tl.where(is_start, b_expected, 0.0), 0))
    now_seconds = tl.where(has_rate, past_seconds, tl.sum(tl.where(is_start, b_costs, 0.0), 0))
    tl.store(rate_tokens, now_tokens, mask=lives)
    tl.store(rate_seconds, now_seconds, mask=lives)
    price = kappa * tl.div_rn(now_tokens, now_seconds)
    b_gain = tl.where(inside, b_expected - price * b_costs, float("-inf"))
    n = first_best(b_gain, lane, N) + 1
    if EXPLORES:
        n = explored_rows(
            n, b_costs, lane, tl.load(length), tl.load(budget), lives, whole, purse, spent,
            explored, reached, trial, asked, BLOCK, MORE, LEAST, TRIAL,
        )  # fmt: skip
    tl.store(rows, tl.where(lives, n, 0))
    tl.store(shown, tl.where(lives, tl.minimum(n + ABOVE, BLOCK), 0))


@triton.jit
def learn_rate(rows, committed, rate_tokens, rate_seconds, costs, MEMORY: tl.constexpr):
    """What `learn` of the reference does."""
    emitted = tl.load(committed)
    learns = emitted > 0
    cost = tl.load(costs + tl.load(rows) - 1, mask=learns, other=0.0)
    past_tokens, past_seconds = tl.load(rate_tokens), tl.load(rate_seconds)
    tl.store(rate_tokens, MEMORY * past_tokens + emitted, mask=learns)
    tl.store(rate_seconds, MEMORY * past_seconds + cost, mask=learns)


def choose(
    log_odds: Tensor,
    tables: LengthTables,
    state: LengthState,
    length: Tensor,
    budget: Tensor,
    is_done: Tensor,
) -> tuple[Tensor, Tensor]:
    """Contract of the reference. Raises ShapeError that names what does not fit."""
    block = _check(tables, state)
    check_tensor("log_odds", log_odds, (block - 1,), torch.float32)
    check_tensor("length", length, (), torch.int32)
    check_tensor("budget", budget, (), torch.int32)
    check_tensor("is_done", is_done, (), torch.bool)
    rows, shown = torch.empty_like(length), torch.empty_like(length)
    C, overlapping = tables.contexts.numel(), overlaps(length.device)
    _choose_kernel[(1,)](
        log_odds, tables.slope, tables.intercepts, tables.contexts, tables.seconds, tables.kappa,
        state.tokens, state.seconds, state.survival, state.costs, length, budget, is_done, rows,
        shown, *_clocked(tables, state), *_explored(tables, rows), BLOCK=block, C=C,
        BLOCK_C=triton.next_power_of_2(C), N=MAX_ROWS, ABOVE=tables.above,
        PRIOR=0.0 if tables.clock is None else PRIOR, EXPLORES=tables.exploration is not None,
        MORE=labels.EXPLORED_ROWS, LEAST=labels.LEAST_COST, TRIAL=labels.TRIAL,
        OVERLAPS=overlapping, launch_pdl=overlapping, num_warps=1,
    )  # fmt: skip
    return rows, shown if tables.above else rows  # one tensor: nothing was dropped


def _clocked(tables: LengthTables, state: LengthState) -> tuple[Tensor, Tensor, Tensor]:
    """What the choice reads and leaves of a clock; without one, what it does not touch."""
    clock = tables.clock
    if clock is None:
        return state.costs, state.costs, state.costs
    check_clock(clock, state.costs.numel())
    return clock.expected, clock.ratios, clock.weights


def _explored(tables: LengthTables, beside: Tensor) -> tuple[Tensor, ...]:
    """What the choice reads and writes of an exploration; without one, what it does not touch."""
    known = tables.exploration
    if known is None:
        return (beside,) * 7
    check_exploration(known)
    return (
        known.whole, known.purse, known.spent, known.explored, known.reached, known.trial,
        known.asked,
    )  # fmt: skip


def _check(tables: LengthTables, state: LengthState) -> int:
    """The block's size. Raises ShapeError that names what does not fit."""
    C, block = tables.contexts.numel(), tables.intercepts.numel() + 1
    if not 2 <= block <= MAX_ROWS or C < 1:
        raise ShapeError(
            f"intercepts must be of 1 to {MAX_ROWS - 1} drafts and contexts at least one, "
            f"got {block - 1} and {C}."
        )
    check_tensor("slope", tables.slope, (), torch.float32)
    check_tensor("intercepts", tables.intercepts, (block - 1,), torch.float32)
    check_tensor("contexts", tables.contexts, (C,), torch.int32)
    check_tensor("seconds", tables.seconds, (C, block), torch.float32)
    check_state(state, block)
    return block


def check_state(state: LengthState, block: int) -> None:
    """Raises ShapeError that names what does not fit a block."""
    floats = {"tokens": (), "seconds": (), "survival": (block - 1,), "costs": (block,)}
    for name, shape in floats.items():
        check_tensor(name, getattr(state, name), shape, torch.float32)
