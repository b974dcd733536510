# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""Products of up to 16 rows with a dense weight, each of which is read once.

One tile, one split and one order of summation whatever the number of rows. A tile is 16 rows of the
weight; a program's warps share the inner dimension, and what they found is added at the end. Rows
of x enter eight at a time, the second eight only where there are more than eight, and leave in a
loop: of two pieces of code the compiler may add one in another order. The gated MLP alone takes all
16, in a loop through shared memory. How weights are loaded: kernels/tiles.py.
"""

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.experts import gate_and_up
from hybridspec.kernels.gdn.rows import CONV, convolve_eight, load_past, sigmoid
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps, precision
from hybridspec.kernels.reference.gdn import Convolution
from hybridspec.kernels.reference.norm import Heads
from hybridspec.kernels.reference.stream import TILE, Stream
from hybridspec.kernels.stream import (
    check_stream,
    read_squares,
    read_stream,
    row_scale,
    stream_tensors,
    write_stream,
)
from hybridspec.kernels.tiles import along, load_eight, load_weights, multiply_eight, warps_for

# chosen on an H200, December 2026, at the 35B shape; TILES: pairs of tiles that a thread holds
PROJECT_WARPS, PROJECT_TILES = 4, 8  # 64 registers of weights
PROJECT_REGISTERS = 168  # three programs a multiprocessor
ONTO_WARPS, ONTO_TILES = 8, 16  # 128 registers of weights: all of attention's and GDN's
ONTO_REGISTERS = 255  # one program a multiprocessor; there are fewer
GATED_COLUMNS, GATED_DEPTH, GATED_STAGES, GATED_WARPS = 16, 128, 5, 2


@triton.jit
def project_kernel(
    x, squares, weight, rows, y, eps, conv, past, inputs, mixed,
    K: tl.constexpr, Y_ROW: tl.constexpr, TILES: tl.constexpr, PARTS: tl.constexpr,
    CHANNELS: tl.constexpr, WARPS: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """y [16, M] = weight times the stream's norm, 16 columns a program.

    x: the stream's scaled rows; PARTS: rounds in which a tile is loaded. CHANNELS > 0: so many
    columns are a convolution's inputs and go, as they are and convolved, to inputs and mixed.
    """
    WIDE: tl.constexpr = K // PARTS
    COUNT: tl.constexpr = WIDE // WARPS // 32
    inner = along(WIDE, WARPS)
    first = tl.program_id(0) * 16
    at = weight + (first + tl.arange(0, 8)[:, None, None]).to(tl.int64) * K + inner
    tiles = load_weights(at, at + 8 * K, COUNT)
    n = tl.load(rows)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    row, column = tl.arange(0, 8), first + tl.arange(0, 16)[:, None]
    if CHANNELS > 0:
        channel = tl.minimum(column, CHANNELS - 1)
        of_past = load_past(conv, past, row[None, :], channel, CHANNELS)
        before = tl.zeros([16, 8], tl.float32)
    low = tl.zeros([WARPS, 16, 8], tl.float32)
    high = tl.zeros([WARPS, 16, 8], tl.float32)
    for part in tl.static_range(PARTS):
        at_x = x + part * WIDE + inner
        low = multiply_eight(
            tiles, load_eight(at_x, n, K, COUNT), low, 0, COUNT, WARPS, PRECISION
        )  # fmt: skip
        if n > 8:
            second = load_eight(at_x + 8 * K, n - 8, K, COUNT)
            high = multiply_eight(tiles, second, high, 0, COUNT, WARPS, PRECISION)
        if part + 1 < PARTS:
            at += WIDE
            tiles = load_weights(at, at + 8 * K, COUNT)
    for eight in range(tl.cdiv(n, 8)):
        scale = row_scale(read_squares(squares, row, TILES, WARPS), eps, K)
        found = tl.sum(tl.where(eight == 0, low, high) * scale[:, None, :], 0)
        live = row[None, :] < n
        tl.store(y + row[None, :] * Y_ROW + column, found, mask=live & (first >= CHANNELS))
        if CHANNELS > 0:  # noqa: SIM102  # a constant, and what is not one
            if first < CHANNELS:
                found = found.to(inputs.dtype.element_ty)
                tl.store(inputs + row[None, :] * CHANNELS + column, found, mask=live)
                found = found.to(tl.float32)
                b_mixed = convolve_eight(found, before, of_past, eight > 0)
                tl.store(mixed + row[None, :] * CHANNELS + column, b_mixed, mask=live)
                before = found
        row += 8


@triton.jit
def project_onto_kernel(
    x, weight, rows, residual, scaled, squares, norm, taps, head_squares, eps,
    K: tl.constexpr, D: tl.constexpr, TAP_ROW: tl.constexpr, PARTS: tl.constexpr,
    HEAD: tl.constexpr, GROUPS: tl.constexpr, WARPS: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += x weight^T, a tile a program; PARTS: rounds in which a tile is loaded.

    HEAD > 0: x is normed in heads of HEAD; head_squares [16, K / HEAD, GROUPS] sum up to theirs.
    """
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
    high_squares = head_squares + 8 * GROUPS * K // max(HEAD, 1)
    low = tl.zeros([WARPS, 16, 8], tl.float32)
    high = tl.zeros([WARPS, 16, 8], tl.float32)
    for part in tl.static_range(PARTS):
        at_x = x + part * WIDE + inner
        low = _add_eight(
            tiles, at_x, n, low, head_squares, eps,
            K, part * WIDE, WIDE, COUNT, HEAD, GROUPS, WARPS, PRECISION,
        )  # fmt: skip
        if n > 8:
            high = _add_eight(
                tiles, at_x + 8 * K, n - 8, high, high_squares, eps,
                K, part * WIDE, WIDE, COUNT, HEAD, GROUPS, WARPS, PRECISION,
            )  # fmt: skip
        if part + 1 < PARTS:
            at += WIDE
            tiles = load_weights(at, at + 8 * K, COUNT)
    for eight in range(tl.cdiv(n, 8)):
        added = tl.sum(tl.where(eight == 0, low, high), 0)
        write_stream(
            h + added, next_norm, residual, scaled, squares, taps, n, row, column, i_n, D, TAP_ROW
        )  # fmt: skip
        row += 8
        h, next_norm = read_stream(residual, norm, n, row, column, D)


@triton.jit
def _add_eight(
    tiles, x, n, sums, head_squares, eps,
    K: tl.constexpr, FIRST: tl.constexpr, WIDE: tl.constexpr, COUNT: tl.constexpr,
    HEAD: tl.constexpr, GROUPS: tl.constexpr, WARPS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums + tile x^T for eight rows; each head times its scale, where x is normed in heads."""
    if HEAD == 0:
        rows = load_eight(x, n, K, COUNT)
        return multiply_eight(tiles, rows, sums, 0, COUNT, WARPS, PRECISION)
    else:  # noqa: RET505  # the compiler takes one of the two
        OWN: tl.constexpr = WIDE // WARPS
        RUN: tl.constexpr = min(HEAD, OWN & -OWN)  # places of a warp that surely are of one head
        row, warp = tl.arange(0, 8)[:, None, None], tl.arange(0, WARPS)[None, :, None]
        group, none = tl.arange(0, GROUPS)[None, None, :], tl.zeros([WARPS, 16, 8], tl.float32)
        parts = ()
        for i in tl.static_range(COUNT * 32 // RUN):
            head = (FIRST + warp * OWN + i * RUN) // HEAD
            parts += (tl.load(head_squares + (row * (K // HEAD) + head) * GROUPS + group),)
        rows = load_eight(x, n, K, COUNT)
        for i in tl.static_range(COUNT * 32 // RUN):
            found = multiply_eight(
                tiles, rows, none, i * RUN // 32, RUN // 32, WARPS, PRECISION
            )  # fmt: skip
            scale = tl.permute(tl.rsqrt(tl.sum(parts[i], 2) / HEAD + eps), (1, 0))
            sums += found * scale[:, None, :]
        return sums


@triton.jit
def gated_kernel(
    x, squares, weight, rows, out, eps,
    D: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out [16, WIDTH] = silu(gate x) (up x) of the stream's norm: COLUMNS of it a program."""
    column, row = tl.program_id(0) * COLUMNS, tl.arange(0, 16)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    live = (row < tl.load(rows))[:, None]
    g, up = gate_and_up(x, weight, live, column, D, WIDTH, COLUMNS, BLOCK_K, STAGES, PRECISION)
    norm = tl.reshape(row_scale(read_squares(squares, row, TILES, 1), eps, D), [16])
    g, up = g * norm[:, None], up * norm[:, None]
    at = out + row[:, None] * WIDTH + column + tl.arange(0, COLUMNS)[None, :]
    tl.store(at, g * sigmoid(g) * up, mask=live)


def project(
    stream: Stream,
    weight: Tensor,
    rows: Tensor,
    eps: float,
    convolution: Convolution | None = None,
) -> Tensor:
    """Contract of the reference: one launch, the weight moved once.

    D: a multiple of 32. Raises ShapeError that names what does not fit.
    """
    D, M = check_stream(stream, rows), len(weight)
    _check_weight(weight, (M, D), stream)
    y = torch.empty(MAX_ROWS, M, dtype=weight.dtype, device=weight.device)
    warps, overlapping = warps_for(D, PROJECT_WARPS), overlaps(weight.device)
    project_kernel[(M // TILE,)](
        stream.scaled, stream.squares, weight, rows, y, eps, **_convolved(convolution, y),
        K=D, Y_ROW=M, TILES=stream.squares.shape[1],
        PARTS=_parts(D, warps, PROJECT_TILES), WARPS=warps,
        PRECISION=precision(weight.dtype), OVERLAPS=overlapping, launch_pdl=overlapping,
        num_warps=warps, maxnreg=PROJECT_REGISTERS,
    )  # fmt: skip
    return y


def project_gated(stream: Stream, weight: Tensor, rows: Tensor, eps: float) -> Tensor:
    """Contract of the reference: one launch, the weight moved once; raises as `project` does."""
    D, WIDTH = check_stream(stream, rows), len(weight) // 2
    _check_weight(weight, (2 * WIDTH, D), stream)
    out = torch.empty(MAX_ROWS, WIDTH, dtype=weight.dtype, device=weight.device)
    overlapping = overlaps(weight.device)
    columns = gcd(GATED_COLUMNS, WIDTH)
    gated_kernel[(WIDTH // columns,)](
        stream.scaled, stream.squares, weight, rows, out, eps,
        D=D, WIDTH=WIDTH, TILES=stream.squares.shape[1], COLUMNS=columns,
        BLOCK_K=gcd(GATED_DEPTH, D), STAGES=GATED_STAGES, PRECISION=precision(weight.dtype),
        OVERLAPS=overlapping, launch_pdl=overlapping, num_warps=GATED_WARPS,
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
    """Contract of the reference: one launch, a program for 16 columns of the stream.

    K: a multiple of 32. Raises ShapeError that names what does not fit.
    """
    _project_onto(x, weight, rows, stream, norm, taps, None, 0.0)


def project_heads_onto(
    heads: Heads, weight: Tensor, rows: Tensor, eps: float, stream: Stream, norm: Tensor
) -> None:
    """Contract of the reference, in the same launch as project_onto.

    V: a power of two, 32 at least; so are groups, from 1 on. Raises ShapeError.
    """
    N, HV, V = heads.rows.shape
    groups = heads.squares.shape[-1]
    check_tensor("squares", heads.squares, (N, HV, groups), torch.float32)
    if V % 32 or V & (V - 1) or groups & (groups - 1):
        raise ShapeError(
            f"heads are {V} wide, their squares in {groups} groups; the kernels take powers of "
            "two, and heads of 32 at least."
        )
    _project_onto(heads.rows.view(N, HV * V), weight, rows, stream, norm, None, heads, eps)


def _project_onto(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    stream: Stream,
    norm: Tensor,
    taps: Tensor | None,
    heads: Heads | None,
    eps: float,
) -> None:
    D, K = check_stream(stream, rows), weight.shape[1]
    check_tensor("x", x, (MAX_ROWS, K), weight.dtype)
    check_tensor("weight", weight, (D, K), stream.scaled.dtype)
    warps = warps_for(K, ONTO_WARPS)
    overlapping = overlaps(x.device)
    project_onto_kernel[(D // TILE,)](
        x, weight, rows, **stream_tensors(stream, norm, taps),
        head_squares=stream.squares if heads is None else heads.squares, eps=eps,
        K=K, D=D, PARTS=_parts(K, warps, ONTO_TILES),
        HEAD=0 if heads is None else heads.rows.shape[-1],
        GROUPS=1 if heads is None else heads.squares.shape[-1], WARPS=warps,
        PRECISION=precision(x.dtype), OVERLAPS=overlapping, launch_pdl=overlapping,
        num_warps=warps, maxnreg=ONTO_REGISTERS,
    )  # fmt: skip


def _convolved(convolution: Convolution | None, y: Tensor) -> dict[str, Tensor | int]:
    """Arguments of project_kernel. Raises ShapeError."""
    if convolution is None:
        return {"conv": y, "past": y, "inputs": y, "mixed": y, "CHANNELS": 0}
    of, C = convolution, convolution.weight.shape[1]
    check_tensor("convolution's weight", of.weight, (CONV, C), of.weight.dtype)
    check_tensor("past", of.past, (CONV - 1, C), y.dtype)
    check_tensor("inputs", of.inputs, (MAX_ROWS, C), y.dtype)
    check_tensor("mixed", of.mixed, (MAX_ROWS, C), torch.float32)
    if C % TILE or y.shape[1] < C:
        raise ShapeError(
            f"{C} of {y.shape[1]} columns are to be convolved; the kernel takes multiples of "
            f"{TILE}, all of them at most."
        )
    return {"conv": of.weight, "past": of.past, "inputs": of.inputs, "mixed": of.mixed,
            "CHANNELS": C}  # fmt: skip


def _check_weight(weight: Tensor, shape: tuple[int, int], stream: Stream) -> None:
    """Raise ShapeError where it does not fit the stream, or is no whole number of tiles."""
    check_tensor("weight", weight, shape, stream.scaled.dtype)
    if len(weight) % TILE:
        raise ShapeError(
            f"weight has {len(weight)} rows; the kernels take multiples of {TILE}: pad it."
        )


def _parts(K: int, warps: int, most: int) -> int:
    """In how many rounds a tile is loaded of which a thread holds at most so many pairs."""
    pairs = K // (warps * 32)
    return next(n for n in range(1, pairs + 1) if pairs % n == 0 and pairs // n <= most)
