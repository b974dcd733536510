# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""The chosen experts of a layer, each fetched once, and the shared one in the same launches.

Two launches: gate and up with SiLU and each row's share, 8 columns of an expert a program; then
down, 16 columns of the stream a program, over all experts of the list in its order. Experts that no
row chose are not in the list: their programs exit. The shared expert leads the list.

Weights of all experts are moved once: 6.3 MB an expert of Qwen3.6-35B-A3B, 1.6 us at 4.0 TB/s.
"""

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.gdn.rows import sigmoid
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps, precision
from hybridspec.kernels.reference.router import Routing
from hybridspec.kernels.reference.stream import Stream
from hybridspec.kernels.stream import (
    check_stream,
    read_squares,
    read_stream,
    row_scale,
    stream_tensors,
    write_stream,
)

# H200, November 2026: 103 experts of the 35B in 109 and 55 us, 9 in 14 and 8
GATE_UP_DEPTH, GATE_UP_STAGES = 256, 3
DOWN_WARPS, DOWN_STAGES = 4, 7


@triton.jit
def gate_up_kernel(
    x, scale, gate_up, rows, ids, weights, shared, chosen, count, hidden, eps,
    D: tl.constexpr, WIDTH: tl.constexpr, TOP: tl.constexpr, SHARED: tl.constexpr,
    TILES: tl.constexpr, RANKS: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """hidden [slots, 16, WIDTH] = share silu(gate x) (up x): 8 columns of one expert of the list.

    TILES > 0: a dense MLP, one slot and no list; `scale` then holds the stream's squares.
    """
    i_i, i_slot = tl.program_id(0), tl.program_id(1)
    row, place, lane = tl.arange(0, 16), tl.arange(0, 16), tl.arange(0, BLOCK_K)
    live = (row < tl.load(rows))[:, None]
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    is_there, expert = True, i_slot.to(tl.int64)
    if TILES == 0:
        expert = tl.load(chosen + i_slot).to(tl.int64)  # stale beyond the count
        is_there = i_slot < tl.load(count)
    if is_there:
        if TILES == 0:
            rank = tl.arange(0, RANKS)[None, :]
            at = row[:, None] * TOP + rank
            is_mine = (tl.load(ids + at, mask=rank < TOP, other=-1) == expert) & live
            share = tl.sum(tl.load(weights + at, mask=is_mine, other=0.0), 1)
            share = tl.where(i_slot < SHARED, tl.load(shared + row), share)
            norm = tl.load(scale + row)
        else:
            share = tl.full([16], 1.0, tl.float32)
            norm = tl.reshape(row_scale(read_squares(scale, row, TILES, 1), eps, D), [16])
        # rows of the tile: 8 of the gate, then the same 8 of up
        of_row = i_i * 8 + place % 8 + tl.where(place < 8, 0, WIDTH)
        at_w = gate_up + (expert * 2 * WIDTH + of_row)[:, None] * D + lane[None, :]
        at_x = x + row[:, None] * D + lane[None, :]
        sums = tl.zeros([16, 16], tl.float32)
        for k in tl.range(0, D, BLOCK_K, num_stages=STAGES):
            b_w = tl.load(at_w + k, eviction_policy="evict_first")
            b_x = tl.load(at_x + k, mask=live, other=0.0)
            sums = tl.dot(b_x, tl.trans(b_w), sums, input_precision=PRECISION)
        sums = sums * norm[:, None]
        g, up = tl.split(tl.permute(tl.reshape(sums, [16, 2, 8]), (0, 2, 1)))
        out = (i_slot * 16 + row)[:, None] * WIDTH + i_i * 8 + tl.arange(0, 8)[None, :]
        tl.store(hidden + out, share[:, None] * g * sigmoid(g) * up, mask=live)


@triton.jit
def down_kernel(
    hidden, down, rows, chosen, count, residual, scaled, squares, norm, taps,
    D: tl.constexpr, WIDTH: tl.constexpr, TAP_ROW: tl.constexpr, SPLIT: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += sum over the list's experts of hidden down^T, in the order of the list.

    16 columns a program; its warps share an expert's width, SPLIT slices added at the end. The list
    was written two launches ahead: it is read before the wait.
    """
    WIDE: tl.constexpr = WIDTH // SPLIT
    i_n = tl.program_id(0)
    column = i_n * 16 + tl.arange(0, 16)
    lane = tl.arange(0, SPLIT)[:, None, None] * WIDE + tl.arange(0, WIDE)[None, None, :]
    row = tl.arange(0, 16)
    n_chosen, n = tl.load(count), tl.load(rows)
    h, next_norm = read_stream(residual, norm, n, row, column, D)
    at_w = down + column[None, :, None] * WIDTH + lane
    at_x, live = hidden + row[None, :, None] * WIDTH + lane, (row < n)[None, :, None]
    b_w = tl.load(at_w + tl.load(chosen).to(tl.int64) * D * WIDTH)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    sums = tl.zeros([SPLIT, 16, 16], tl.float32)
    b_x = tl.load(at_x, mask=live, other=0.0)
    sums = tl.dot(b_x, tl.permute(b_w, (0, 2, 1)), sums, input_precision=PRECISION)
    for slot in tl.range(1, n_chosen, num_stages=STAGES):
        expert = tl.load(chosen + slot).to(tl.int64)
        b_w = tl.load(at_w + expert * D * WIDTH, eviction_policy="evict_first")
        b_x = tl.load(at_x + slot * 16 * WIDTH, mask=live, other=0.0)
        sums = tl.dot(b_x, tl.permute(b_w, (0, 2, 1)), sums, input_precision=PRECISION)
    h += tl.trans(tl.sum(sums, 0))
    write_stream(h, next_norm, residual, scaled, squares, taps, n, row, column, i_n, D, TAP_ROW)


def experts_onto(
    stream: Stream,
    routing: Routing,
    gate_up: Tensor,
    down: Tensor,
    rows: Tensor,
    norm: Tensor,
    taps: Tensor | None = None,
    *,
    most_rows: int = 16,
) -> None:
    """Contract of the reference; most_rows: rows that a launch must have programs for."""
    D, WIDTH = check_stream(stream, rows), down.shape[-1]
    E, top = check_routing(routing)
    dtype = stream.scaled.dtype
    check_tensor("gate_up", gate_up, (E + routing.pieces, 2 * WIDTH, D), dtype)
    check_tensor("down", down, (E + routing.pieces, D, WIDTH), dtype)
    if WIDTH < 16 or WIDTH & (WIDTH - 1):
        raise ShapeError(f"experts are {WIDTH} wide; the kernels take powers of two from 16 on.")
    slots = routing.pieces + min(E, most_rows * top)
    hidden = torch.empty(slots, 16, WIDTH, dtype=dtype, device=rows.device)
    overlapping = overlaps(rows.device)
    modes = {
        "PRECISION": precision(dtype), "OVERLAPS": overlapping, "launch_pdl": overlapping,
    }  # fmt: skip
    gate_up_kernel[WIDTH // 8, slots](
        stream.scaled, routing.scale, gate_up, rows, routing.ids, routing.weights, routing.shared,
        routing.chosen, routing.count, hidden, 0.0,
        D=D, WIDTH=WIDTH, TOP=top, SHARED=routing.pieces, TILES=0,
        RANKS=triton.next_power_of_2(top),
        BLOCK_K=gcd(GATE_UP_DEPTH, D), STAGES=GATE_UP_STAGES,
        num_warps=1, **modes,
    )  # fmt: skip
    warps = min(DOWN_WARPS, WIDTH // 16)
    down_kernel[(D // 16,)](
        hidden, down, rows, routing.chosen, routing.count, **stream_tensors(stream, norm, taps),
        D=D, WIDTH=WIDTH, SPLIT=warps, STAGES=DOWN_STAGES, num_warps=warps, **modes,
    )  # fmt: skip


def check_routing(routing: Routing) -> tuple[int, int]:
    """How many experts there are, and how many a row chooses. Raises ShapeError."""
    E, top = routing.experts, routing.ids.shape[1]
    check_tensor("ids", routing.ids, (MAX_ROWS, top), torch.int32)
    check_tensor("weights", routing.weights, (MAX_ROWS, top), torch.float32)
    check_tensor("shared", routing.shared, (MAX_ROWS,), torch.float32)
    check_tensor("scale", routing.scale, (MAX_ROWS,), torch.float32)
    check_tensor("chosen", routing.chosen, (E + routing.pieces,), torch.int32)
    check_tensor("count", routing.count, (), torch.int32)
    if not 1 <= E <= 1024 or not 1 <= routing.pieces <= 32 or top > min(32, E):
        raise ShapeError(
            f"routing is to {top} of {E} experts, a shared one beside them of {routing.pieces} "
            "pieces; the kernels take up to 32 of 1024, and 32 pieces."
        )
    return E, top
