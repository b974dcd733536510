# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""Products of up to 16 rows with a dense weight, each of which is read once.

One tile, one split and one order of summation whatever the number of rows. A tile is 16 rows of the
weight; a program's warps share the inner dimension, and what they found is added at the end. Rows
of x enter eight at a time: the second eight only where there are more than eight. How weights are
loaded: kernels/tiles.py.
"""

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.experts import GATE_UP_DEPTH, GATE_UP_STAGES, gate_up_kernel
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps, precision
from hybridspec.kernels.reference.stream import Stream
from hybridspec.kernels.stream import (
    check_stream,
    read_squares,
    read_stream,
    row_scale,
    stream_tensors,
    write_stream,
)
from hybridspec.kernels.tiles import along, load_weights, multiply_eight, warps_for

# H200, November 2026, 12352 x 2048 at 16 rows
PROJECT_WARPS, PROJECT_PROGRAMS = 4, 2  # programs a multiprocessor
ONTO_WARPS, ONTO_TILES = 8, 16  # pairs of tiles of 32 that a thread holds: 128 registers


@triton.jit
def project_kernel(
    x, squares, weight, rows, y, eps, M,
    K: tl.constexpr, Y_ROW: tl.constexpr, TILES: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """y [16, M] = x weight^T; TILES > 0: of the stream's norm. 16 divides M.

    A program takes every num_programs-th tile of 16 columns.
    """
    COUNT: tl.constexpr = K // WARPS // 32
    inner = along(K, WARPS)
    eight = tl.arange(0, 8)[:, None, None]
    first, step = tl.program_id(0) * 16, tl.num_programs(0) * 16
    at = weight + (first + eight).to(tl.int64) * K + inner
    tiles = load_weights(at, at + 8 * K, COUNT)
    n = tl.load(rows)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    low = tl.full([WARPS, 8], 1.0, tl.float32)
    high = tl.full([WARPS, 8], 1.0, tl.float32)
    if TILES > 0:
        row = tl.arange(0, 8)
        low = row_scale(read_squares(squares, row, TILES, WARPS), eps, K)
        if n > 8:
            high = row_scale(read_squares(squares, row + 8, TILES, WARPS), eps, K)
    _store_tile(tiles, x + inner, n, low, high, y + first, K, Y_ROW, COUNT, WARPS, PRECISION)
    for start in range(first + step, M, step):
        at = weight + (start + eight).to(tl.int64) * K + inner
        tiles = load_weights(at, at + 8 * K, COUNT)
        tl.debug_barrier()  # all of them are under way
        _store_tile(tiles, x + inner, n, low, high, y + start, K, Y_ROW, COUNT, WARPS, PRECISION)


@triton.jit
def _store_tile(
    tiles, x, n, low, high, y,
    K: tl.constexpr, Y_ROW: tl.constexpr, COUNT: tl.constexpr, WARPS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """16 columns of a result, in its first n rows."""
    none = tl.zeros([WARPS, 16, 8], tl.float32)
    row, column = tl.arange(0, 8)[None, :], tl.arange(0, 16)[:, None]
    out = y + row * Y_ROW + column
    sums = multiply_eight(tiles, x, n, none, K, COUNT, WARPS, PRECISION)
    tl.store(out, tl.sum(sums * low[:, None, :], 0), mask=row < n)
    if n > 8:
        sums = multiply_eight(tiles, x + 8 * K, n - 8, none, K, COUNT, WARPS, PRECISION)
        tl.store(out + 8 * Y_ROW, tl.sum(sums * high[:, None, :], 0), mask=row < n - 8)


@triton.jit
def project_onto_kernel(
    x, weight, rows, residual, scaled, squares, norm, taps,
    K: tl.constexpr, D: tl.constexpr, TAP_ROW: tl.constexpr, PARTS: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += x weight^T, a tile a program; PARTS: rounds in which a tile is loaded."""
    WIDE: tl.constexpr = K // PARTS
    COUNT: tl.constexpr = WIDE // WARPS // 32
    i_n = tl.program_id(0)
    inner = along(WIDE, WARPS)
    row, column = tl.arange(0, 8), i_n * 16 + tl.arange(0, 16)
    n = tl.load(rows)
    h, next_norm = read_stream(residual, norm, n, row, column, D)
    at = weight + (i_n * 16 + tl.arange(0, 8)[:, None, None]).to(tl.int64) * K + inner
    tiles = load_weights(at, at + 8 * K, COUNT)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    low = tl.zeros([WARPS, 16, 8], tl.float32)
    high = tl.zeros([WARPS, 16, 8], tl.float32)
    for part in tl.static_range(PARTS):
        at_x = x + part * WIDE + inner
        low = multiply_eight(tiles, at_x, n, low, K, COUNT, WARPS, PRECISION)
        if n > 8:
            high = multiply_eight(tiles, at_x + 8 * K, n - 8, high, K, COUNT, WARPS, PRECISION)
        if part + 1 < PARTS:
            at += WIDE
            tiles = load_weights(at, at + 8 * K, COUNT)
    h += tl.sum(low, 0)
    write_stream(h, next_norm, residual, scaled, squares, taps, n, row, column, i_n, D, TAP_ROW)
    if n > 8:
        h, next_norm = read_stream(residual, norm, n, row + 8, column, D)
        h += tl.sum(high, 0)
        row += 8
        write_stream(h, next_norm, residual, scaled, squares, taps, n, row, column, i_n, D, TAP_ROW)


def project(stream: Stream, weight: Tensor, rows: Tensor, eps: float) -> Tensor:
    """Contract of the reference: one launch, the weight moved once."""
    D = check_stream(stream, rows)
    check_tensor("weight", weight, (len(weight), D), stream.scaled.dtype)
    return _project(stream.scaled, weight, rows, stream.squares, eps)


def project_rows(x: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
    """Contract of the reference."""
    check_tensor("rows", rows, (), torch.int32)
    check_tensor("x", x, (MAX_ROWS, x.shape[1]), weight.dtype)
    check_tensor("weight", weight, (len(weight), x.shape[1]), x.dtype)
    return _project(x, weight, rows, None, 0.0)


def _project(x: Tensor, weight: Tensor, rows: Tensor, squares: Tensor | None, eps: float) -> Tensor:
    M, K = weight.shape
    if M % 16:
        raise ShapeError(f"weight has {M} rows; the kernels take multiples of 16: pad it.")
    y = torch.empty(MAX_ROWS, M, dtype=x.dtype, device=x.device)
    tiles, most = M // 16, PROJECT_PROGRAMS * _multiprocessors(x.device)
    steps = triton.cdiv(tiles, most)
    warps = warps_for(K, PROJECT_WARPS)
    overlapping = overlaps(x.device)
    project_kernel[(triton.cdiv(tiles, steps),)](
        x, x if squares is None else squares, weight, rows, y, eps, M,
        K=K, Y_ROW=M, TILES=0 if squares is None else squares.shape[1], WARPS=warps,
        PRECISION=precision(x.dtype), OVERLAPS=overlapping, launch_pdl=overlapping,
        num_warps=warps,
    )  # fmt: skip
    return y


def project_gated(stream: Stream, weight: Tensor, rows: Tensor, eps: float) -> Tensor:
    """Contract of the reference: the experts' first launch with one dense expert."""
    D, WIDTH = check_stream(stream, rows), len(weight) // 2
    check_tensor("weight", weight, (2 * WIDTH, D), stream.scaled.dtype)
    if WIDTH % 8:
        raise ShapeError(f"weight has {2 * WIDTH} rows; the kernels take multiples of 16: pad it.")
    out = torch.empty(MAX_ROWS, WIDTH, dtype=weight.dtype, device=weight.device)
    overlapping = overlaps(weight.device)
    gate_up_kernel[WIDTH // 8, 1](
        stream.scaled, stream.squares, weight, rows, rows, rows, rows, rows, rows, out, eps,
        D=D, WIDTH=WIDTH, TOP=1, SHARED=0, RANKS=1, TILES=stream.squares.shape[1],
        BLOCK_K=gcd(GATE_UP_DEPTH, D),
        STAGES=GATE_UP_STAGES, PRECISION=precision(weight.dtype), OVERLAPS=overlapping,
        launch_pdl=overlapping, num_warps=1,
    )  # fmt: skip
    return out


def project_onto(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    stream: Stream,
    norm: Tensor,
    taps: Tensor | None = None,
) -> None:
    """Contract of the reference: one launch, a program for 16 columns of the stream."""
    D, K = check_stream(stream, rows), weight.shape[1]
    check_tensor("x", x, (MAX_ROWS, K), weight.dtype)
    check_tensor("weight", weight, (D, K), stream.scaled.dtype)
    warps = warps_for(K, ONTO_WARPS)
    parts = next(
        p for p in range(1, K) if K % (p * warps * 32) == 0 and K // (p * warps * 32) <= ONTO_TILES
    )
    overlapping = overlaps(x.device)
    project_onto_kernel[(D // 16,)](
        x, weight, rows, **stream_tensors(stream, norm, taps),
        K=K, D=D, PARTS=parts, WARPS=warps, PRECISION=precision(x.dtype),
        OVERLAPS=overlapping, launch_pdl=overlapping, num_warps=warps,
    )  # fmt: skip


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
