# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""Router: logits, softmax, the k best, their shares, and the list of distinct experts, one launch.

The product takes a program for every 16 experts; the one that finishes last does the rest. Equal
logits go to the lower index. Replaces product, softmax, sort, gather, division, unique and copies.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.kernels.experts import check_routing
from hybridspec.kernels.gdn.rows import sigmoid
from hybridspec.kernels.launch import check_tensor, overlaps, precision
from hybridspec.kernels.reference.router import Routing
from hybridspec.kernels.reference.stream import Stream
from hybridspec.kernels.stream import check_stream, read_squares, row_scale
from hybridspec.kernels.tiles import along, load_weights, multiply_eight, warps_for

ROUTE_WARPS = 8


@triton.jit
def _sortable(z):
    """An int32 that orders as z does; both zeros are one, and what is no number comes last."""
    bits = tl.where(z == z, z + 0.0, -float("inf")).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value(key):
    """The float that a key was made of."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def route_kernel(
    x, squares, weight, rows, logits, arrived, ids, weights, shared, scale, chosen, count, eps,
    D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr, TOP: tl.constexpr,
    TILES: tl.constexpr, PADDED: tl.constexpr,
    SUMS_TO_ONE: tl.constexpr, WARPS: tl.constexpr, PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """weight [E + 1, D]: the router, then the shared expert's gate. PADDED: power of two >= E."""
    COUNT: tl.constexpr = D // WARPS // 32
    i_n = tl.program_id(0)
    inner = along(D, WARPS)
    column, eight = i_n * 16 + tl.arange(0, 16), tl.arange(0, 8)[:, None, None]
    low = weight + tl.minimum(i_n * 16 + eight, E) * D + inner
    high = weight + tl.minimum(i_n * 16 + 8 + eight, E) * D + inner
    tiles = load_weights(low, high, COUNT)
    n = tl.load(rows)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.arange(0, 8)
    parts = read_squares(squares, row, TILES, WARPS)
    none = tl.zeros([WARPS, 16, 8], tl.float32)
    sums = multiply_eight(tiles, x + inner, n, none, D, COUNT, WARPS, PRECISION)
    sums = sums * row_scale(parts, eps, D)[:, None, :]
    place = logits + row[None, :] * (E + 32) + column[:, None]
    tl.store(place, tl.sum(sums, 0), mask=(column <= E)[:, None] & (row < n)[None, :])
    if n > 8:
        parts = read_squares(squares, row + 8, TILES, WARPS)
        second = x + 8 * D + inner
        sums = multiply_eight(tiles, second, n - 8, none, D, COUNT, WARPS, PRECISION)
        sums = sums * row_scale(parts, eps, D)[:, None, :]
        is_asked = (column <= E)[:, None] & (row + 8 < n)[None, :]
        tl.store(place + 8 * (E + 32), tl.sum(sums, 0), mask=is_asked)
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.debug_barrier()
        tl.store(arrived, 0)
        every = tl.arange(0, 16)
        b_scale = row_scale(read_squares(squares, every, TILES, WARPS), eps, D)
        tl.store(scale + every[None, :] + 0 * tl.arange(0, WARPS)[:, None], b_scale, mask=every < n)
        words = tl.zeros([32], tl.int32)
        for start in range(0, n, 8):
            of_eight = start + tl.arange(0, 8)
            words |= _pick(logits, ids, weights, shared, of_eight, n, E, TOP, PADDED, SUMS_TO_ONE)
        part = tl.arange(0, PADDED // 32)
        present = tl.reshape((words[None, :] >> part[:, None]) & 1, [PADDED])
        _store_list(present, chosen, count, E, SHARED, PADDED)


@triton.jit
def _store_list(
    present, chosen, count, E: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr
):
    """The shared expert's pieces, then the experts that are present [PADDED], rising."""
    expert = tl.arange(0, PADDED)
    tl.store(chosen + tl.cumsum(present, 0) + (SHARED - 1), expert, mask=present > 0)
    tl.store(chosen + expert, E + expert, mask=expert < SHARED)
    tl.store(count, tl.sum(present, 0) + SHARED)


@triton.jit
def _pick(
    logits, ids, weights, shared, row, n,
    E: tl.constexpr, TOP: tl.constexpr, PADDED: tl.constexpr, SUMS_TO_ONE: tl.constexpr,
):  # fmt: skip
    """Ids and shares of eight rows; which experts any of them chose: bit p of [32] is 32 p + lane.

    Lane l holds experts l, l + 32, ...: a row lies in one warp.
    """
    PARTS: tl.constexpr = PADDED // 32
    lane = tl.arange(0, 32)[None, :]
    live = (row < n)[:, None]
    keys = ()
    for part in tl.static_range(PARTS):
        at = row[:, None] * (E + 32) + part * 32 + lane
        is_there = part * 32 + lane < E
        z = tl.load(logits + at, mask=live & is_there, other=0.0, cache_modifier=".cg")
        keys += (tl.where(is_there, _sortable(z), -(2**31)),)
    gate = tl.load(logits + row * (E + 32) + E, mask=row < n, other=0.0, cache_modifier=".cg")
    left = keys
    word = tl.zeros([8, 32], tl.int32)
    best, share = tl.zeros([8, 32], tl.int32), tl.zeros([8, 32], tl.float32)  # lane i: the ith
    first, mass = tl.zeros([8], tl.float32), tl.zeros([8], tl.float32)
    for i in tl.static_range(TOP):
        largest = left[0]
        for part in tl.static_range(1, PARTS):
            largest = tl.maximum(largest, left[part])
        top = tl.max(largest, 1)
        index = tl.full([8, 32], E, tl.int32)
        for part in tl.static_range(PARTS - 1, -1, -1):
            index = tl.where(left[part] == top[:, None], part * 32 + lane, index)
        expert = tl.min(index, 1)
        if i == 0:
            first = _value(top)
        p = tl.exp(_value(top) - first)
        mass += p
        share = tl.where(lane == i, p[:, None], share)
        best = tl.where(lane == i, expert[:, None], best)
        word |= tl.where(lane == expert[:, None] % 32, 1 << (expert[:, None] // 32), 0)
        rest = ()
        for part in tl.static_range(PARTS):
            is_it = expert[:, None] == part * 32 + lane
            rest += (tl.where(is_it, -(2**31), left[part]),)
        left = rest
    if not SUMS_TO_ONE:
        mass = tl.zeros([8], tl.float32)
        for part in tl.static_range(PARTS):
            p = tl.exp(_value(keys[part]) - first[:, None])
            mass += tl.sum(tl.where(part * 32 + lane < E, p, 0.0), 1)
    at = row[:, None] * TOP + lane
    tl.store(weights + at, share / mass[:, None], mask=(lane < TOP) & live)
    tl.store(ids + at, best, mask=(lane < TOP) & live)
    tl.store(shared + row, sigmoid(gate), mask=row < n)
    return tl.reduce(tl.where(live, word, 0), 0, _either)


@triton.jit
def _list_kernel(
    ids, rows, chosen, count,
    E: tl.constexpr, SHARED: tl.constexpr, TOP: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row, expert = tl.arange(0, 16), tl.arange(0, PADDED)
    live = (row < tl.load(rows))[:, None]
    picked = tl.zeros([16, PADDED], tl.int32)
    for i in tl.static_range(TOP):
        own = tl.load(ids + row * TOP + i)[:, None] == expert[None, :]
        picked = tl.where(own & live, 1, picked)
    _store_list(tl.max(picked, 0), chosen, count, E, SHARED, PADDED)


def list_experts(routing: Routing, rows: Tensor) -> None:
    """Contract of the reference. It begins when the launch ahead has ended."""
    check_tensor("rows", rows, (), torch.int32)
    E, top = check_routing(routing)
    _list_kernel[(1,)](
        routing.ids, rows, routing.chosen, routing.count,
        E=E, SHARED=routing.pieces, TOP=top, PADDED=_padded(E),
        num_warps=4,
    )  # fmt: skip


def route_stream(
    stream: Stream,
    weight: Tensor,
    rows: Tensor,
    eps: float,
    routing: Routing,
    *,
    sums_to_one: bool = True,
) -> None:
    """Contract of the reference."""
    D = check_stream(stream, rows)
    E, top = check_routing(routing)
    check_tensor("weight", weight, (E + 1, D), stream.scaled.dtype)
    logits = torch.empty(16, E + 32, dtype=torch.float32, device=weight.device)
    warps = warps_for(D, ROUTE_WARPS)
    overlapping = overlaps(weight.device)
    route_kernel[(triton.cdiv(E + 1, 16),)](
        stream.scaled, stream.squares, weight, rows, logits, routing.arrived, routing.ids,
        routing.weights, routing.shared, routing.scale, routing.chosen, routing.count, eps,
        D=D, E=E, SHARED=routing.pieces, TOP=top, PADDED=_padded(E), TILES=stream.squares.shape[1],
        SUMS_TO_ONE=sums_to_one, WARPS=warps,
        PRECISION=precision(weight.dtype), OVERLAPS=overlapping, launch_pdl=overlapping,
        num_warps=warps,
    )  # fmt: skip


def _padded(E: int) -> int:
    return 1 << max(5, (E - 1).bit_length())
