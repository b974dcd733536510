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
from hybridspec.kernels.product import along, both, load_weights, multiply, multiply_eight
from hybridspec.kernels.stream import read_stream, write_stream


@triton.jit
def gate_up_kernel(
    x, scale, gate_up, rows, ids, weights, shared, chosen, count, hidden,
    D: tl.constexpr, I: tl.constexpr, TOP: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """hidden [slots, 16, I] = share silu(gate x) (up x). A slot is one expert of the list.

    A tile is 8 rows of the gate and the same 8 of up; a program takes every so manieth.
    """
    COUNT: tl.constexpr = D // WARPS // 32
    n = tl.load(rows)
    inner = along(D, WARPS)
    eight, row = tl.arange(0, 8), tl.arange(0, 16)
    at = row[:, None] * TOP + tl.arange(0, TOP)[None, :]
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    for item in range(tl.program_id(0), tl.load(count) * (I // 8), tl.num_programs(0)):
        slot, i_i = item // (I // 8), item % (I // 8) * 8
        expert = tl.load(chosen + slot)
        gate = gate_up + (expert.to(tl.int64) * 2 * I + i_i + eight[:, None, None]) * D + inner
        tiles = load_weights(gate, gate + I * D, COUNT)
        is_mine = tl.load(ids + at) == expert
        share = tl.sum(tl.where(is_mine, tl.load(weights + at), 0.0), 1)
        share = tl.where(slot == 0, tl.load(shared + row), share)[None, :]
        norm = tl.load(scale + row)[None, :]
        tl.debug_barrier()  # all loads are under way before the first is waited for
        found = multiply(tiles, x + inner, n, D, COUNT, WARPS, PRECISION) * norm
        g, up = tl.split(tl.permute(tl.reshape(found, [2, 8, 16]), (1, 2, 0)))
        out = (slot * 16 + row)[None, :] * I + i_i + eight[:, None]
        tl.store(hidden + out, share * g * sigmoid(g) * up, mask=(row < n)[None, :])


@triton.jit
def down_kernel(
    hidden, down, rows, chosen, count, residual, scaled, squares, norm, taps,
    D: tl.constexpr, I: tl.constexpr, TAP_ROW: tl.constexpr, DEPTH: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """stream += sum over the list's experts of hidden down^T, in the order of the list.

    A tile a program; DEPTH experts are fetched at a time. The list was written two launches ahead:
    it is read before the wait.
    """
    COUNT: tl.constexpr = I // WARPS // 32
    i_n = tl.program_id(0)
    inner = along(I, WARPS)
    column = i_n * 16 + tl.arange(0, 16)
    at = down + (i_n * 16 + tl.arange(0, 8)[:, None, None]) * I + inner
    last = tl.load(count) - 1
    tiles = _of_experts(at, chosen, 0, last, D, I, COUNT, DEPTH)
    n = tl.load(rows)
    h, next_norm = read_stream(residual, norm, n, column, D)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    low = tl.zeros([WARPS, 16, 8], tl.float32)
    high = tl.zeros([WARPS, 16, 8], tl.float32)
    for slot in range(0, last + 1, DEPTH):
        following = _of_experts(at, chosen, slot + DEPTH, last, D, I, COUNT, DEPTH)
        tl.debug_barrier()  # they are under way before these are computed
        for i in tl.static_range(DEPTH):
            own = ()
            for t in tl.static_range(2 * COUNT):
                own += (tiles[2 * COUNT * i + t],)
            is_in = tl.where(slot + i <= last, n, 0)
            at_x = hidden + (slot + i) * 16 * I + inner
            low = multiply_eight(own, at_x, is_in, low, I, COUNT, WARPS, PRECISION)
            if is_in > 8:
                at_x += 8 * I
                high = multiply_eight(own, at_x, is_in - 8, high, I, COUNT, WARPS, PRECISION)
        tiles = following
    h += both(tl.sum(low, 0), tl.sum(high, 0))
    write_stream(h, next_norm, residual, scaled, squares, taps, n, column, i_n, D, TAP_ROW)


@triton.jit
def _of_experts(
    at, chosen, slot, last, D: tl.constexpr, I: tl.constexpr, COUNT: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Tiles of DEPTH experts of the list; beyond its end the last one's again, from the cache."""
    tiles = ()
    for i in tl.static_range(DEPTH):
        expert = tl.load(chosen + tl.minimum(slot + i, last)).to(tl.int64)
        low = at + expert * (D * I)
        tiles += load_weights(low, low + 8 * I, COUNT)
    return tiles
