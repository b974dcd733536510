# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""Device functions of the launches that read the residual stream or add to it, and its beginning.

What lies between launches: kernels/reference/stream.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps
from hybridspec.kernels.reference.stream import TILE, Stream


@triton.jit
def read_squares(squares, row, TILES: tl.constexpr, WARPS: tl.constexpr):
    """Partial sums of squares of rows [R], for each warp its own: [WARPS, R, tiles].

    Loaded early, needed late.
    """
    PADDED: tl.constexpr = triton.next_power_of_2(TILES)
    warp, tile = tl.arange(0, WARPS)[:, None, None], tl.arange(0, PADDED)[None, None, :]
    at = squares + row[None, :, None] * TILES + tile + 0 * warp
    return tl.load(at, mask=tile < TILES, other=0.0)


@triton.jit
def row_scale(parts, eps, D: tl.constexpr):
    """1 / root mean square of each row [WARPS, R]; a row depends on its own numbers alone.

    No warp asks another one: of a sum over warps, behind a trigger of dependent launches and before
    a loop, ptxas made code in which a warp's threads parted for good (docs/log.md).
    """
    return tl.rsqrt(tl.sum(parts, 2) / D + eps)


@triton.jit
def read_stream(residual, norm, n, row, column, D: tl.constexpr):
    """The stream's columns [BLOCK, ROWS] in rows before n, and the next norm's weight [BLOCK].

    Read before a launch waits: the last one to write the stream is two launches ahead at least.
    """
    at = residual + row[None, :] * D + column[:, None]
    return tl.load(at, mask=(row < n)[None, :], other=0.0), tl.load(norm + column)


@triton.jit
def write_stream(
    h, weight, residual, scaled, squares, taps, n, row, column, i_n,
    D: tl.constexpr, TAP_ROW: tl.constexpr,
):  # fmt: skip
    """Store the stream's columns [BLOCK, ROWS] and what the next norm needs of them.

    TAP_ROW: numbers in a row of taps; 0 where this layer is not tapped.
    """
    place, live = row[None, :] * D + column[:, None], (row < n)[None, :]
    tl.store(residual + place, h, mask=live)
    tl.store(scaled + place, h * weight.to(tl.float32)[:, None], mask=live)
    tl.store(squares + row * (D // 16) + i_n, tl.sum(h * h, 0), mask=row < n)
    if TAP_ROW > 0:
        tl.store(taps + row[None, :] * TAP_ROW + column[:, None], h, mask=live)


@triton.jit
def _enter_kernel(
    tokens, rows, embedding, residual, scaled, squares, norm, taps,
    D: tl.constexpr, TAP_ROW: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    i_n, row = tl.program_id(0), tl.arange(0, 16)
    column = i_n * 16 + tl.arange(0, 16)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    n = tl.load(rows)
    token = tl.load(tokens + row, mask=row < n, other=0)
    at = embedding + token[None, :] * D + column[:, None]
    h = tl.load(at, mask=(row < n)[None, :], other=0.0).to(tl.float32)
    weight = tl.load(norm + column)
    write_stream(h, weight, residual, scaled, squares, taps, n, row, column, i_n, D, TAP_ROW)


def enter(tokens: Tensor, rows: Tensor, embedding: Tensor, norm: Tensor, stream: Stream) -> None:
    """Contract of the reference: one launch, a program for 16 columns."""
    D = check_stream(stream, rows)
    check_tensor("embedding", embedding, (len(embedding), D), stream.scaled.dtype)
    check_tensor("tokens", tokens, (MAX_ROWS,), torch.int64)
    overlapping = overlaps(rows.device)
    _enter_kernel[(D // TILE,)](
        tokens, rows, embedding, **stream_tensors(stream, norm, None),
        D=D, OVERLAPS=overlapping, launch_pdl=overlapping, num_warps=1,
    )  # fmt: skip


def check_stream(stream: Stream, rows: Tensor) -> int:
    """Its width. Raises ShapeError."""
    D = stream.residual.shape[1]
    if D % TILE:
        raise ShapeError(f"residual is {D} wide; the kernels take multiples of {TILE}.")
    check_tensor("rows", rows, (), torch.int32)
    check_tensor("residual", stream.residual, (MAX_ROWS, D), torch.float32)
    check_tensor("scaled", stream.scaled, (MAX_ROWS, D), stream.scaled.dtype)
    check_tensor("squares", stream.squares, (MAX_ROWS, D // TILE), torch.float32)
    return D


def stream_tensors(stream: Stream, norm: Tensor, taps: Tensor | None) -> dict[str, Tensor | int]:
    """Arguments of a kernel that writes the stream. Raises ShapeError."""
    D = stream.residual.shape[1]
    check_tensor("norm", norm, (D,), norm.dtype)
    if taps is not None and (taps.shape != (MAX_ROWS, D) or taps.stride(1) != 1):
        check_tensor("taps", taps, (MAX_ROWS, D), taps.dtype)
    return {
        "residual": stream.residual,
        "scaled": stream.scaled,
        "squares": stream.squares,
        "norm": norm,
        "taps": stream.scaled if taps is None else taps,
        "TAP_ROW": 0 if taps is None else taps.stride(0),
    }
