# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false
"""The residual stream between launches, and device functions of the kernels that read or add to it.

A norm needs whole rows, a launch that adds to the stream holds some columns of them. So it leaves
behind each row times the weight of the norm that reads it next, and the sums of squares of its own
columns; the reader divides its result by the root of their mean. The norm costs no launch and no
second pass.
"""

import triton
import triton.language as tl

@triton.jit
def read_squares(squares, TILES: tl.constexpr):
    """Partial sums of squares of the stream's rows [TILES, 16]: loaded early, needed late."""
    tile, row = tl.arange(0, TILES)[:, None], tl.arange(0, 16)[None, :]
    return tl.load(squares + tile * 16 + row)


@triton.jit
def row_scale(parts, eps, D: tl.constexpr):
    """1 / root mean square of each row [16]; a row depends on its own numbers alone."""
    return tl.rsqrt(tl.sum(parts, 0) / D + eps)


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
    tl.store(squares + i_n * 16 + row, tl.sum(h * h, 0), mask=row < n)
    if TAP_ROW > 0:
        tl.store(taps + row[None, :] * TAP_ROW + column[:, None], h, mask=live)
