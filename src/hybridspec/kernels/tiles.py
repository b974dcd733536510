# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""Tiles of weights for up to 16 rows: device functions of the launches that multiply.

Weights go from memory into the registers that the tensor cores read, with no stop in shared memory
and no barrier: a warp loads 8 rows of 32 numbers, 16 bytes a thread, and both operands name these
32 numbers in the order in which the threads hold them (`as_operand`). All loads of a round are
under way before its first product.
"""

import triton
import triton.language as tl

from hybridspec.kernels.launch import ShapeError


@triton.jit
def along(K: tl.constexpr, WARPS: tl.constexpr):
    """Places [1, WARPS, 32] of a first tile: each warp has K / WARPS of the inner dimension."""
    warp, lane = tl.arange(0, WARPS)[None, :, None], tl.arange(0, 32)[None, None, :]
    return warp * (K // WARPS) + lane


@triton.jit
def load_weights(low, high, COUNT: tl.constexpr):
    """COUNT pairs of tiles from pointers [8, WARPS, 32] to a tile's first and second eight rows."""
    tiles = ()
    for i in tl.static_range(COUNT):
        tiles += (tl.load(low + i * 32), tl.load(high + i * 32))
    return tiles


@triton.jit
def as_operand(tile, ROWS: tl.constexpr, WARPS: tl.constexpr):
    """[WARPS, ROWS, 32] with the inner dimension in the order of the tensor cores' registers.

    A thread holds 8 neighbours and would hold two times 4 of an operand's 32: these become its.
    """
    tile = tl.permute(tl.reshape(tile, [WARPS, ROWS, 4, 2, 4]), (0, 1, 3, 2, 4))
    return tl.reshape(tile, [WARPS, ROWS, 32])


@triton.jit
def load_eight(x, n, X_ROW: tl.constexpr, COUNT: tl.constexpr):
    """Eight rows of x, of which the first n count, at the inner places of COUNT pairs of tiles.

    x: pointers [1, WARPS, 32] into the first row
    """
    row = tl.arange(0, 8)[:, None, None]
    rows = ()
    for i in tl.static_range(COUNT):
        rows += (tl.load(x + row * X_ROW + i * 32, mask=row < n, other=0.0),)
    return rows


@triton.jit
def multiply_eight(
    tiles, rows, sums, FIRST: tl.constexpr, COUNT: tl.constexpr, WARPS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """sums [WARPS, 16, 8] + tile x^T over COUNT pairs of tiles from FIRST on."""
    for i in tl.static_range(FIRST, FIRST + COUNT):
        a = tl.permute(tl.join(tiles[2 * i], tiles[2 * i + 1]), (1, 3, 0, 2))
        a = as_operand(tl.reshape(a, [WARPS, 16, 32]), 16, WARPS)
        b = as_operand(tl.permute(rows[i], (1, 0, 2)), 8, WARPS)
        sums = tl.dot(a, tl.permute(b, (0, 2, 1)), sums, input_precision=PRECISION)
    return sums


def warps_for(K: int, most: int) -> int:
    """Warps that may share an inner dimension K. Raises ShapeError."""
    warps = most
    while warps and K % (32 * warps):
        warps //= 2
    if not warps:
        raise ShapeError(f"an inner dimension of {K} is no multiple of 32: pad it.")
    return warps
