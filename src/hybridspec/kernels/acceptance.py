# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""Acceptance that learns: a part of kernels/learning.py, where lane j - 1 stands for draft j.

What a reader gets wrong: one warp is not a matter of speed. Numbers are read and rewritten in
place, and the loads of a second warp could come after the stores of the first.
"""

import triton
import triton.language as tl
from torch import float32, int32

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.exploration import check_exploration
from hybridspec.kernels.gdn.rows import sigmoid
from hybridspec.kernels.launch import ShapeError, check_tensor
from hybridspec.kernels.reference import acceptance as rule
from hybridspec.kernels.reference.acceptance import AcceptanceState


@triton.jit
def _cut(x, LARGEST: tl.constexpr):
    return tl.minimum(tl.maximum(x, -LARGEST), LARGEST)


@triton.jit
def _count(
    labels, survivals, which: tl.constexpr, b_p, b_y, lane, labelled, judged,
    G: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """One more in each label's cell, and the survivals by bins; returns these and their bins."""
    b_bin = tl.minimum((b_p * BINS).to(tl.int32), BINS - 1)
    cell = labels + ((which * 2 + b_y.to(tl.int32)) * G + lane) * BINS + b_bin
    tl.store(cell, tl.load(cell, mask=labelled, other=0) + 1, mask=labelled)
    b_survival = tl.cumprod(b_p, 0)
    b_place = tl.minimum((b_survival * BINS).to(tl.int32), BINS - 1)
    i_bin = tl.arange(0, BINS)
    is_here = (b_place[None, :] == i_bin[:, None]) & judged[None, :]
    at = survivals + which * 2 * BINS + i_bin
    tl.store(at, tl.load(at) + tl.sum(tl.where(is_here, b_survival[None, :], 0.0), 1))
    tl.store(at + BINS, tl.load(at + BINS) + tl.sum(tl.where(is_here, b_y[None, :], 0.0), 1))
    return b_survival, is_here


@triton.jit
def _judge(
    gap, spread, weight, distrusted, warm_up, whole, b_error, is_here, times,
    JUDGED: tl.constexpr, TRUSTED: tl.constexpr, RESUMED: tl.constexpr, LEAST: tl.constexpr,
    BINS: tl.constexpr,
):  # fmt: skip
    i_bin = tl.arange(0, BINS)
    left = tl.where(times > 0, JUDGED, 1.0)
    b_here = tl.sum(tl.where(is_here, b_error[None, :], 0.0), 1)
    b_gap = left * tl.load(gap + i_bin) + b_here
    b_spread = left * left * tl.load(spread + i_bin) + b_here * b_here
    in_all = left * tl.load(weight) + times
    beyond = tl.sum(tl.maximum(tl.abs(b_gap) - tl.sqrt(b_spread), 0.0), 0)
    limit = tl.where(tl.load(distrusted) > 0, RESUMED, TRUSTED)
    is_off = (in_all >= LEAST) & (beyond > limit * in_all)
    to_come = tl.maximum(tl.load(warm_up) - 1, 0)
    tl.store(gap + i_bin, b_gap)
    tl.store(spread + i_bin, b_spread)
    tl.store(weight, in_all)
    tl.store(distrusted, is_off.to(tl.int32))
    tl.store(warm_up, to_come)
    tl.store(whole, (is_off | (to_come > 0)).to(tl.int32))
    return is_off


@triton.jit
def _fit(
    slope, prior_slope, curve_slope, curve_cross, curve, b_intercepts, b_prior, b_odds, b_y, lane,
    inside, labelled, memory,
    PRIOR_SLOPE: tl.constexpr, PRIOR_INTERCEPT: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """One Newton step, the slope's stored; returns the intercepts."""
    before = tl.load(slope)
    b_logit = before * b_odds + b_intercepts
    b_p, b_missed = sigmoid(b_logit), sigmoid(-b_logit)  # 1 - p has few digits near certainty
    b_rest = tl.where(labelled, b_y - b_p, 0.0)
    b_weight = tl.where(labelled, b_p * b_missed, 0.0)
    left = tl.where(tl.sum(labelled.to(tl.int32), 0) > 0, memory, 1.0)
    corner = left * tl.load(curve_slope) + tl.sum(b_weight * b_odds * b_odds, 0)
    b_cross = left * tl.load(curve_cross + lane, mask=inside, other=0.0) + b_weight * b_odds
    b_curve = left * tl.load(curve + lane, mask=inside, other=0.0) + b_weight
    tl.store(curve_slope, corner)
    tl.store(curve_cross + lane, b_cross, mask=inside)
    tl.store(curve + lane, b_curve, mask=inside)
    pull = 1 - left
    of_slope = tl.sum(b_rest * b_odds, 0) - pull * PRIOR_SLOPE * (before - tl.load(prior_slope))
    b_each = b_rest - pull * PRIOR_INTERCEPT * (b_intercepts - b_prior)
    b_diagonal = b_curve + PRIOR_INTERCEPT
    schur = corner + PRIOR_SLOPE - tl.sum(tl.div_rn(b_cross * b_cross, b_diagonal), 0)
    step = of_slope - tl.sum(tl.div_rn(b_cross * b_each, b_diagonal), 0)
    step = _cut(tl.div_rn(step, tl.maximum(schur, PRIOR_SLOPE)), STEP)
    step = tl.maximum(step, -before)
    tl.store(slope, before + step)
    return b_intercepts + _cut(tl.div_rn(b_each - b_cross * step, b_diagonal), STEP)


@triton.jit
def fit_acceptance(
    log_odds, chosen, rows, committed, is_done, length,
    slope, intercepts, residual, served, prior_slope, prior_intercepts, curve_slope, curve_cross,
    curve, gap, spread, weight, distrusted, warm_up, whole, purse, labels, survivals, judged,
    costs, reached, trial,
    G: tl.constexpr, N: tl.constexpr, BINS: tl.constexpr, MEMORY: tl.constexpr,
    MEMORY_IF_OFF: tl.constexpr, PRIOR_SLOPE: tl.constexpr, PRIOR_INTERCEPT: tl.constexpr,
    ODDS: tl.constexpr,
    STEP: tl.constexpr, RESIDUAL_MEMORY: tl.constexpr, RESIDUAL_STEP: tl.constexpr,
    JUDGED: tl.constexpr, TRUSTED: tl.constexpr, RESUMED: tl.constexpr, LEAST: tl.constexpr,
    SHARE: tl.constexpr,
):  # fmt: skip
    """What `adapt` of the reference does."""
    emitted = tl.load(committed)
    if emitted > 0:
        lane = tl.arange(0, N)
        inside = lane < G
        n, accepted, goes_on = tl.load(rows), emitted - 1, tl.load(is_done) == 0
        is_read = inside & (lane < tl.minimum(tl.load(chosen), n) - 1)
        b_y = (lane < accepted).to(tl.float32)
        b_raw = tl.load(log_odds + lane, mask=inside, other=0.0)
        known = tl.abs(b_raw) < float("inf")
        b_odds = _cut(tl.where(known, b_raw, 0.0), ODDS)
        labelled = is_read & known & ((lane < accepted) | ((lane == accepted) & goes_on))
        b_prior = tl.load(prior_intercepts + lane, mask=inside, other=0.0)
        b_loaded = sigmoid(tl.load(prior_slope) * b_odds + b_prior)
        b_served = tl.load(served + lane, mask=inside, other=0.0)
        b_p = sigmoid(tl.load(slope) * b_odds + b_served)
        first_unknown = tl.min(tl.where(known, N, lane), 0)
        counts = is_read & goes_on & (lane < first_unknown)
        _count(labels, survivals, 0, b_loaded, b_y, lane, labelled, counts, G, N, BINS)
        b_survival, is_here = _count(
            labels, survivals, 1, b_p, b_y, lane, labelled, counts, G, N, BINS
        )
        times = tl.sum(counts.to(tl.int32), 0)
        tl.store(judged, tl.load(judged) + times)
        is_off = _judge(
            gap, spread, weight, distrusted, warm_up, whole, b_survival - b_y, is_here, times,
            JUDGED, TRUSTED, RESUMED, LEAST, BINS,
        )  # fmt: skip
        b_intercepts = tl.load(intercepts + lane, mask=inside, other=0.0)
        memory = tl.where(is_off, MEMORY_IF_OFF, MEMORY)
        b_intercepts = _fit(
            slope, prior_slope, curve_slope, curve_cross, curve, b_intercepts, b_prior, b_odds,
            b_y, lane, inside, labelled, memory, PRIOR_SLOPE, PRIOR_INTERCEPT, STEP,
        )  # fmt: skip
        rest = tl.sum(tl.where(labelled, b_y - b_p, 0.0), 0)
        of_request = RESIDUAL_MEMORY * tl.load(residual) + RESIDUAL_STEP * rest
        of_request = tl.minimum(tl.maximum(of_request, -1.0), 1.0)
        tl.store(residual, of_request)
        tl.store(intercepts + lane, b_intercepts, mask=inside)
        tl.store(served + lane, b_intercepts + of_request, mask=inside)
        saved = tl.load(purse) + SHARE * tl.load(costs + n - 1)
        tl.store(purse, tl.minimum(saved, tl.load(costs + G)))
        tl.store(reached, tl.load(length))
        tl.store(trial, tl.maximum(tl.load(trial) - 1, 0))


def check_acceptance(state: AcceptanceState) -> int:
    """Drafts of a block. Raises ShapeError that names what does not fit."""
    drafts, bins = state.intercepts.numel(), rule.BINS
    if not 1 <= drafts < MAX_ROWS:
        raise ShapeError(f"intercepts must be of 1 to {MAX_ROWS - 1} drafts, got {drafts}.")
    floats: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("slope", "prior_slope", "curve_slope", "residual", "weight"), ()),
        **dict.fromkeys(
            ("intercepts", "served", "prior_intercepts", "curve_cross", "curve"), (drafts,)
        ),
        **dict.fromkeys(("gap", "spread"), (bins,)),
        "survivals": (2, 2, bins),
    }
    for name, shape in floats.items():
        check_tensor(name, getattr(state, name), shape, float32)
    for name in ("distrusted", "warm_up", "judged"):
        check_tensor(name, getattr(state, name), (), int32)
    check_tensor("labels", state.labels, (2, 2, drafts, bins), int32)
    check_exploration(state.exploration)
    return drafts
