# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""Greedy acceptance in one program of one warp, and the bookkeeping of a captured round.

Replaces a dozen launches and five questions to the host of the reference. It moves under 1 KiB.

What a reader gets wrong: one warp is not a matter of speed. Scalars are read and rewritten in
place, and the loads of a second warp could come after the stores of the first.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.clock import now
from hybridspec.kernels.launch import INTERPRETED, ShapeError, check_tensor, overlaps
from hybridspec.kernels.reference.accept import RING_WIDTH, Ledger

WARPS = 1


@triton.jit
def _judge(
    block, target, n, stop_ids, budget,
    N: tl.constexpr, STOPS: tl.constexpr, BLOCK_STOPS: tl.constexpr,
):  # fmt: skip
    """Drafts accepted, whether the text ends there, and the target's tokens [N]; n at least 1."""
    row = tl.arange(0, N)
    b_target = tl.load(target + row, mask=row < n, other=-1)
    # behind the last draft nothing agrees, so that a full match stops there
    b_draft = tl.load(block + row + 1, mask=row + 1 < n, other=-2)
    agreed = tl.min(tl.where(b_draft == b_target, N, row), 0)
    stop = tl.arange(0, BLOCK_STOPS)
    b_stop = tl.load(stop_ids + stop, mask=stop < STOPS, other=-3)
    is_stop = tl.max((b_target[:, None] == b_stop[None, :]).to(tl.int32), 1) > 0
    first_stop = tl.min(tl.where(is_stop, row, N), 0)
    accepted = tl.minimum(tl.minimum(agreed, first_stop), budget - 1)
    return accepted, (accepted == first_stop) | (accepted + 1 >= budget), b_target


@triton.jit
def _settle_kernel(
    block, target, rows, stop_ids, anchor, budget, length, committed, is_done, rounds, settled,
    ring,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, STOPS: tl.constexpr,
    BLOCK_STOPS: tl.constexpr, IS_TIMED: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    tl.store(settled, now(IS_TIMED))
    n, left, number = tl.load(rows), tl.load(budget), tl.load(rounds)
    before, was_done = tl.load(length), tl.load(is_done) != 0
    is_idle = was_done | (left < 1) | (n < 1)
    judged, ends, b_target = _judge(block, target, n, stop_ids, left, N, STOPS, BLOCK_STOPS)
    accepted = tl.where(is_idle, -1, judged)
    done = tl.where(is_idle, was_done, ends)
    row = tl.arange(0, N)
    tl.store(anchor, tl.sum(tl.where(row == accepted, b_target, 0), 0), mask=accepted >= 0)
    tl.store(budget, left - accepted - 1)
    tl.store(length, before + accepted + 1)
    tl.store(committed, accepted + 1)
    tl.store(is_done, done)
    tl.store(rounds, number + 1)
    slot = ring + (number % SLOTS) * WIDTH
    tl.store(slot + row, tl.where(row <= accepted, b_target, -1))
    tl.store(slot + N, accepted.to(tl.int64))
    tl.store(slot + N + 1, tl.where(is_idle, 0, n).to(tl.int64))
    tl.store(slot + N + 2, done.to(tl.int64))
    tl.store(slot + N + 3, number.to(tl.int64))


def settle(block: Tensor, target: Tensor, rows: Tensor, stop_ids: Tensor, ledger: Ledger) -> None:
    """Contract of the reference. Raises ShapeError that names what does not fit."""
    _check(block, target, rows, stop_ids)
    check_tensor("anchor", ledger.anchor, (), torch.int64)
    for name in ("budget", "length", "committed", "rounds"):
        check_tensor(name, getattr(ledger, name), (), torch.int32)
    check_tensor("is_done", ledger.is_done, (), torch.bool)
    check_tensor("settled", ledger.settled, (), torch.int64)
    check_tensor("ring", ledger.ring, (ledger.ring.shape[0], RING_WIDTH), torch.int64)
    _settle_kernel[(1,)](
        block, target, rows, stop_ids, ledger.anchor, ledger.budget, ledger.length,
        ledger.committed, ledger.is_done, ledger.rounds, ledger.settled, ledger.ring,
        IS_TIMED=not INTERPRETED, SLOTS=ledger.ring.shape[0], WIDTH=RING_WIDTH,
        **_common(block, stop_ids),
    )  # fmt: skip


def _common(block: Tensor, stop_ids: Tensor) -> dict[str, Any]:
    overlapping = overlaps(block.device)
    return {
        "N": MAX_ROWS,
        "STOPS": len(stop_ids),
        "BLOCK_STOPS": triton.next_power_of_2(max(len(stop_ids), 1)),
        "OVERLAPS": overlapping,
        "launch_pdl": overlapping,
        "num_warps": WARPS,
    }


def _check(block: Tensor, target: Tensor, rows: Tensor, stop_ids: Tensor) -> None:
    for name, tensor in (("block", block), ("target", target)):
        check_tensor(name, tensor, (tensor.numel(),), torch.int64)
        if not 1 <= tensor.numel() <= MAX_ROWS:
            raise ShapeError(f"{name} must hold 1 to {MAX_ROWS} tokens, got {tensor.numel()}.")
    check_tensor("rows", rows, (), torch.int32)
    check_tensor("stop_ids", stop_ids, (stop_ids.numel(),), torch.int64)
