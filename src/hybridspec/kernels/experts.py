# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false
"""The chosen experts of a layer, each fetched once, and the shared one in the same launches.

Two launches: gate and up with SiLU and each row's share, a program for BLOCK_I of an expert's width;
then down, a program for BLOCK_N columns of the stream, over all experts of the list in its order.
Experts that no row chose are not in the list: their programs exit, or never come. The shared expert
stands in front of the list as the rows after the last routed one (index E), so that its weights need
not wait for the router.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.kernels.gdn.rows import sigmoid
from hybridspec.kernels.stream import read_stream, write_stream


@triton.jit
def gate_up_kernel(
    x, scale, gate_up, rows, ids, weights, shared, chosen, count, hidden,
    D: tl.constexpr, I: tl.constexpr, TOP: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """hidden [slots, 16, I] = share silu(gate x) (up x): 8 columns of one expert of the list."""
    i_i, i_slot = tl.program_id(0), tl.program_id(1)
    row, place, lane = tl.arange(0, 16), tl.arange(0, 16), tl.arange(0, BLOCK_K)
    n = tl.load(rows)
    live = (row < n)[:, None]
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(chosen + i_slot).to(tl.int64)  # stale beyond the count
    if i_slot < tl.load(count):
        at = row[:, None] * TOP + tl.arange(0, TOP)[None, :]
        is_mine = tl.load(ids + at) == expert
        share = tl.sum(tl.where(is_mine, tl.load(weights + at), 0.0), 1)
        share = tl.where(i_slot == 0, tl.load(shared + row), share)
        norm = tl.load(scale + row)
        # rows of the tile: 8 of the gate, then the same 8 of up
        of_row = i_i * 8 + place % 8 + tl.where(place < 8, 0, I)
        at_w = gate_up + (expert * 2 * I + of_row)[:, None] * D + lane[None, :]
        at_x = x + row[:, None] * D + lane[None, :]
        sums = tl.zeros([16, 16], tl.float32)
        for k in tl.range(0, D, BLOCK_K, num_stages=STAGES):
            b_w = tl.load(at_w + k, eviction_policy="evict_first")
            b_x = tl.load(at_x + k, mask=live, other=0.0)
            sums = tl.dot(b_x, tl.trans(b_w), sums, input_precision=PRECISION)
        sums = sums * norm[:, None]
        g, up = tl.split(tl.permute(tl.reshape(sums, [16, 2, 8]), (0, 2, 1)))
        out = (i_slot * 16 + row)[:, None] * I + i_i * 8 + tl.arange(0, 8)[None, :]
        tl.store(hidden + out, share[:, None] * g * sigmoid(g) * up, mask=live)


@triton.jit
def down_kernel(
    hidden, down, rows, chosen, count, residual, scaled, squares, norm, taps,
    D: tl.constexpr, I: tl.constexpr, TAP_ROW: tl.constexpr, SPLIT: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += sum over the list's experts of hidden down^T, in the order of the list.

    16 columns a program; its warps share an expert's width, SPLIT slices added at the end. The list
    was written two launches ahead: it is read before the wait.
    """
    WIDE: tl.constexpr = I // SPLIT
    i_n = tl.program_id(0)
    column = i_n * 16 + tl.arange(0, 16)
    lane = tl.arange(0, SPLIT)[:, None, None] * WIDE + tl.arange(0, WIDE)[None, None, :]
    row = tl.arange(0, 16)
    n_chosen, n = tl.load(count), tl.load(rows)
    h, next_norm = read_stream(residual, norm, n, row, column, D)
    at_w = down + column[None, :, None] * I + lane
    at_x, live = hidden + row[None, :, None] * I + lane, (row < n)[None, :, None]
    b_w = tl.load(at_w + tl.load(chosen).to(tl.int64) * D * I, eviction_policy="evict_first")
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    sums = tl.zeros([SPLIT, 16, 16], tl.float32)
    b_x = tl.load(at_x, mask=live, other=0.0)
    sums = tl.dot(b_x, tl.permute(b_w, (0, 2, 1)), sums, input_precision=PRECISION)
    for slot in tl.range(1, n_chosen, num_stages=STAGES):
        expert = tl.load(chosen + slot).to(tl.int64)
        b_w = tl.load(at_w + expert * D * I, eviction_policy="evict_first")
        b_x = tl.load(at_x + slot * 16 * I, mask=live, other=0.0)
        sums = tl.dot(b_x, tl.permute(b_w, (0, 2, 1)), sums, input_precision=PRECISION)
    h += tl.trans(tl.sum(sums, 0))
    write_stream(h, next_norm, residual, scaled, squares, taps, n, row, column, i_n, D, TAP_ROW)
