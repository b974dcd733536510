# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
"""The chosen experts of a layer, each fetched once, and the shared one in the same launches.

Two launches: gate and up with SiLU and each row's share, COLUMNS of an expert a program; then
down, 16 columns of the stream a program, over all experts of the router's list in its order. The
shared expert leads the list; programs of slots beyond it exit.

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
from hybridspec.kernels.reference.stream import TILE, Stream
from hybridspec.kernels.router import check_routing
from hybridspec.kernels.stream import check_stream, read_stream, stream_tensors, write_stream

# launches chosen on an H200, December 2026, at the 35B shape
GATE_UP_COLUMNS, GATE_UP_DEPTH, GATE_UP_STAGES = 8, 256, 3
GATE_UP_SLOTS = 65  # programs for more would mostly find nothing to do, which is not free
DOWN_WARPS, DOWN_STAGES = 4, 9


@triton.jit
def gate_and_up(
    x, weight, live, column,
    D: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of the stream's rows with columns of a gate and of its up: [16, COLUMNS] twice."""
    row, lane, place = tl.arange(0, 16), tl.arange(0, BLOCK_K), tl.arange(0, 2 * COLUMNS)
    # rows of the tile: those of the gate, then the same of up
    of_row = column + place % COLUMNS + tl.where(place < COLUMNS, 0, WIDTH)
    at_w = weight + of_row[:, None] * D + lane[None, :]
    at_x = x + row[:, None] * D + lane[None, :]
    sums = tl.zeros([16, 2 * COLUMNS], tl.float32)
    for k in tl.range(0, D, BLOCK_K, num_stages=STAGES):
        b_w = tl.load(at_w + k, eviction_policy="evict_first")
        b_x = tl.load(at_x + k, mask=live, other=0.0)
        sums = tl.dot(b_x, tl.trans(b_w), sums, input_precision=PRECISION)
    return tl.split(tl.permute(tl.reshape(sums, [16, 2, COLUMNS]), (0, 2, 1)))


@triton.jit
def gate_up_kernel(
    x, gate_up, shares, scale, chosen, readers, count, hidden,
    D: tl.constexpr, WIDTH: tl.constexpr, EXPERTS: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """hidden [slots, 16, WIDTH] = share silu(gate x) (up x): COLUMNS of one expert of the list.

    A program takes every num_programs-th slot. Of an expert's rows only its readers are fetched and
    written: there are as many bytes in 16 rows of x as in the tile of the weight.
    """
    i_i, first, step = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.arange(0, 16)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    listed, mine = tl.load(count), tl.load(chosen + first).to(tl.int64)
    bits = tl.load(readers + first)
    for i_slot in range(first, listed, step):
        live = ((bits >> row) & 1 > 0)[:, None]
        share = tl.load(shares + row * EXPERTS + mine)
        norm = tl.load(scale + row)
        of_mine = gate_up + mine * 2 * WIDTH * D
        g, up = gate_and_up(
            x, of_mine, live, i_i * COLUMNS, D, WIDTH, COLUMNS, BLOCK_K, STAGES, PRECISION
        )  # fmt: skip
        g, up = g * norm[:, None], up * norm[:, None]
        out = (i_slot * 16 + row)[:, None] * WIDTH + i_i * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        tl.store(hidden + out, share[:, None] * g * sigmoid(g) * up, mask=live)
        following = i_slot + step
        mine = tl.load(chosen + following, mask=following < listed, other=0).to(tl.int64)
        bits = tl.load(readers + following, mask=following < listed, other=0)


@triton.jit
def down_kernel(
    hidden, down, rows, chosen, readers, count, residual, scaled, squares, norm, taps,
    E: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TAP_ROW: tl.constexpr,
    SPLIT: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += sum over the list's experts of hidden down^T, in the order of the list.

    16 columns a program; its warps share an expert's width, SPLIT slices added at the end. The list
    begins with the shared expert, E, which is fetched before the wait.
    """
    WIDE: tl.constexpr = WIDTH // SPLIT
    i_n = tl.program_id(0)
    column = i_n * 16 + tl.arange(0, 16)
    lane = tl.arange(0, SPLIT)[:, None, None] * WIDE + tl.arange(0, WIDE)[None, None, :]
    row = tl.arange(0, 16)
    n = tl.load(rows)
    h, next_norm = read_stream(residual, norm, n, row, column, D)
    at_w = down + column[None, :, None] * WIDTH + lane
    at_x = hidden + row[None, :, None] * WIDTH + lane
    b_w = tl.load(at_w + tl.full([], E, tl.int64) * D * WIDTH)
    listed = tl.load(count)
    if OVERLAPS:
        gdc_wait()
    sums = tl.zeros([SPLIT, 16, 16], tl.float32)
    b_x = tl.load(at_x, mask=(row < n)[None, :, None], other=0.0)
    sums = tl.dot(b_x, tl.permute(b_w, (0, 2, 1)), sums, input_precision=PRECISION)
    for slot in tl.range(1, listed, num_stages=STAGES):
        expert = tl.load(chosen + slot).to(tl.int64)
        b_w = tl.load(at_w + expert * D * WIDTH, eviction_policy="evict_first")
        is_read = (tl.load(readers + slot) >> row) & 1 > 0
        b_x = tl.load(at_x + slot * 16 * WIDTH, mask=is_read[None, :, None], other=0.0)
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
    most_rows: int = MAX_ROWS,
) -> None:
    """Contract of the reference; I: a power of two, 16 at least.

    most_rows: rows that a launch must have programs for. Raises ShapeError that names what does not
    fit.
    """
    (E, top), (D, WIDTH) = check_routing(routing), _check(stream, routing, gate_up, down, rows)
    dtype = stream.scaled.dtype
    slots = routing.pieces + min(E, most_rows * top)
    hidden = torch.empty(slots, MAX_ROWS, WIDTH, dtype=dtype, device=rows.device)
    overlapping = overlaps(rows.device)
    modes = {
        "PRECISION": precision(dtype), "OVERLAPS": overlapping, "launch_pdl": overlapping,
    }  # fmt: skip
    gate_up_kernel[WIDTH // GATE_UP_COLUMNS, min(slots, GATE_UP_SLOTS)](
        stream.scaled, gate_up, routing.shares, routing.scale, routing.chosen, routing.readers,
        routing.count, hidden,
        D=D, WIDTH=WIDTH, EXPERTS=E + routing.pieces, COLUMNS=GATE_UP_COLUMNS,
        BLOCK_K=gcd(GATE_UP_DEPTH, D), STAGES=GATE_UP_STAGES, num_warps=1, **modes,
    )  # fmt: skip
    warps = min(DOWN_WARPS, WIDTH // 16)
    down_kernel[(D // TILE,)](
        hidden, down, rows, routing.chosen, routing.readers, routing.count,
        **stream_tensors(stream, norm, taps),
        E=E, D=D, WIDTH=WIDTH, SPLIT=warps, STAGES=DOWN_STAGES, num_warps=warps, **modes,
    )  # fmt: skip


def _check(
    stream: Stream, routing: Routing, gate_up: Tensor, down: Tensor, rows: Tensor
) -> tuple[int, int]:
    """Width of the stream and of an expert. Raises ShapeError that names what does not fit."""
    D, WIDTH = check_stream(stream, rows), down.shape[-1]
    count, dtype = routing.experts + routing.pieces, stream.scaled.dtype
    check_tensor("gate_up", gate_up, (count, 2 * WIDTH, D), dtype)
    check_tensor("down", down, (count, D, WIDTH), dtype)
    if WIDTH < 16 or WIDTH & (WIDTH - 1):
        raise ShapeError(f"experts are {WIDTH} wide; the kernels take powers of two from 16 on.")
    return D, WIDTH
