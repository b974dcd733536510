# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""The choice put right by the first router, in a program of one warp.

Replaces some hundred launches of the reference and its questions to the host; moves under 2 KiB.
Lane m - 1 stands for m rows.

What a reader gets wrong: one warp is not a matter of speed (kernels/length.py).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps
from hybridspec.kernels.length import check_state, first_best
from hybridspec.kernels.reference import correction as rule
from hybridspec.kernels.reference.correction import Correction
from hybridspec.kernels.reference.length import LengthState, LengthTables


@triton.jit
def _unions(expert_ids, shown, K: tl.constexpr, BLOCK_K: tl.constexpr, N: tl.constexpr):
    """Distinct experts of the first 1, 2, ... rows, [N] float32; of no meaning from `shown` on."""
    place = tl.arange(0, N * BLOCK_K)
    row, rank, choice = place // BLOCK_K, place % BLOCK_K, tl.arange(0, BLOCK_K)
    inside = (row < shown) & (rank < K)
    b_ids = tl.load(expert_ids + row * K + rank, mask=inside, other=-1)
    is_known = tl.zeros([N * BLOCK_K], tl.int32)
    for earlier in range(shown):
        b_row = tl.load(expert_ids + earlier * K + choice, mask=choice < K, other=-2)
        is_met = (b_row[:, None] == b_ids[None, :]) & (row > earlier)[None, :]
        is_known = tl.maximum(is_known, tl.max(is_met.to(tl.int32), 0))
    b_new = tl.reshape(tl.where(inside, 1 - is_known, 0), [N, BLOCK_K])
    return tl.cumsum(tl.sum(b_new, 1), 0).to(tl.float32)


@triton.jit
def _correct_kernel(
    expert_ids, rows, shown, kappa, rate_tokens, rate_seconds, survival, costs, price, seen,
    experts, beyond, kept, dropped, read, asked,
    K: tl.constexpr, BLOCK_K: tl.constexpr, N: tl.constexpr, BELOW: tl.constexpr,
    MEMORY: tl.constexpr, EXPLORES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    n, most = tl.load(rows), tl.load(shown)
    if most > 0:
        lane = tl.arange(0, N)
        is_shown = lane < most
        b_own = _unions(expert_ids, most, K, BLOCK_K, N)
        b_seen = tl.load(seen + lane, mask=is_shown, other=0.0)
        b_experts = tl.load(experts + lane, mask=is_shown, other=0.0)
        b_mean = tl.div_rn(b_experts, tl.where(b_seen > 0, b_seen, 1.0))
        b_beyond = tl.where(b_seen > 0, b_own - b_mean, 0.0)
        b_costs = tl.load(costs + lane, mask=is_shown, other=1.0)
        is_draft = is_shown & (lane > 0)
        b_survival = tl.load(survival + lane - 1, mask=is_draft, other=0.0)
        b_expected = tl.cumsum(tl.where(lane == 0, 1.0, b_survival), 0)
        a_second = kappa * tl.div_rn(tl.load(rate_tokens), tl.load(rate_seconds))
        b_gain = b_expected - a_second * (b_costs + tl.load(price) * b_beyond)
        may_be_read = is_shown & (lane >= n - 1 - BELOW)
        if EXPLORES:
            may_be_read = may_be_read & ((lane == n - 1) | (tl.load(asked) == 0))
        best = first_best(tl.where(may_be_read, b_gain, float("-inf")), lane, N)
        before_kept, before_dropped = tl.load(kept), tl.load(dropped)
        tl.store(seen + lane, MEMORY * b_seen + 1, mask=is_shown)
        tl.store(experts + lane, MEMORY * b_experts + b_own, mask=is_shown)
        tl.store(beyond, tl.sum(tl.where(lane == best, b_beyond, 0.0), 0))
        tl.store(kept, before_kept + tl.maximum(best + 1 - n, 0))
        tl.store(dropped, before_dropped + most - best - 1)
        tl.store(read, best + 1)
    else:
        tl.store(read, n)


@triton.jit
def fit_price(
    rows, seconds, costs, prior, price, products, squares, beyond,
    MEMORY: tl.constexpr, PRIOR: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """What `learn_price` of the reference does; seconds: that the round took, 0 for none."""
    learns = seconds > 0
    expected = tl.load(costs + tl.load(rows) - 1, mask=learns, other=1.0)
    most = LARGEST * expected
    missed = tl.minimum(tl.maximum(seconds - expected, -most), most)
    x = tl.load(beyond)
    product = MEMORY * tl.load(products) + x * missed
    square = MEMORY * tl.load(squares) + x * x
    fitted = tl.div_rn(product + PRIOR * tl.load(prior), square + PRIOR)
    tl.store(products, product, mask=learns)
    tl.store(squares, square, mask=learns)
    tl.store(price, tl.maximum(fitted, 0.0), mask=learns)


def correct(
    expert_ids: Tensor,
    rows: Tensor,
    shown: Tensor,
    tables: LengthTables,
    state: LengthState,
    correction: Correction,
) -> Tensor:
    """Contract of the reference. Raises ShapeError that names what does not fit."""
    check_tensor("expert_ids", expert_ids, tuple(expert_ids.shape), torch.int32, torch.int64)
    if expert_ids.dim() != 2 or expert_ids.shape[0] > MAX_ROWS:
        raise ShapeError(
            f"expert_ids must be [N, k] of at most {MAX_ROWS} rows, got {list(expert_ids.shape)}."
        )
    check_tensor("rows", rows, (), torch.int32)
    check_tensor("shown", shown, (), torch.int32)
    check_state(state, state.costs.numel())
    check_correction(correction)
    K, read = expert_ids.shape[1], torch.empty_like(rows)
    asked = rows if tables.exploration is None else tables.exploration.asked
    check_tensor("asked", asked, (), torch.int32)
    overlapping = overlaps(rows.device)
    _correct_kernel[(1,)](
        expert_ids, rows, shown, tables.kappa, state.tokens, state.seconds, state.survival,
        state.costs, correction.price, correction.seen, correction.experts, correction.beyond,
        correction.kept, correction.dropped, read, asked, K=K, BLOCK_K=triton.next_power_of_2(K),
        N=MAX_ROWS, BELOW=correction.below, MEMORY=rule.UNION_MEMORY,
        EXPLORES=tables.exploration is not None, OVERLAPS=overlapping, launch_pdl=overlapping,
        num_warps=1,
    )  # fmt: skip
    return read


def check_correction(correction: Correction) -> None:
    """Raises ShapeError that names what does not fit."""
    for name in ("prior", "price", "products", "squares", "beyond"):
        check_tensor(name, getattr(correction, name), (), torch.float32)
    for name in ("seen", "experts"):
        check_tensor(name, getattr(correction, name), (MAX_ROWS,), torch.float32)
    for name in ("kept", "dropped"):
        check_tensor(name, getattr(correction, name), (), torch.int32)
