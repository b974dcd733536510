# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""Router: logits, softmax, the k best and their shares.

Two launches: the product, a program for every 16 experts and ROUTE_SPLIT-th part of the inner
dimension; then each row picks, a warp a row, and the last of them lists the experts of all. Equal
logits go to the lower index. Replaces product, softmax, sort, gather, division and copies; moves
the weight once, 1.05 MB of Qwen3.6-35B-A3B.
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
from hybridspec.kernels.reference.router import Routing, Steering
from hybridspec.kernels.reference.stream import TILE, Stream
from hybridspec.kernels.stream import check_stream, read_squares, row_scale
from hybridspec.kernels.tiles import along, load_eight, load_weights, multiply_eight, warps_for

ROUTE_WARPS, ROUTE_SPLIT = 4, 4


@triton.jit
def _sortable(z):
    """An int32 that orders as z does; both zeros are one, and what is no number comes last."""
    z = tl.where(z == 0.0, 0.0, z)  # not z + 0.0, which fuses with a product into -0.0 again
    bits = tl.where(z == z, z, -float("inf")).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value(key):
    """The float that a key was made of."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _list(
    word, bits, n, chosen, readers, count,
    E: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The shared expert's pieces, then the experts of word [32], rising.

    bits [PADDED / 32, 32]: the rows of expert 32 p + l
    """
    expert, piece = tl.arange(0, PADDED), tl.arange(0, 32)
    present = tl.reshape((word[None, :] >> tl.arange(0, PADDED // 32)[:, None]) & 1, [PADDED])
    place = SHARED + tl.cumsum(present, 0) - 1
    tl.store(chosen + piece, E + piece, mask=piece < SHARED)
    tl.store(readers + piece, (1 << n) - 1 + 0 * piece, mask=piece < SHARED)
    tl.store(chosen + place, expert, mask=present > 0)
    tl.store(readers + place, tl.reshape(bits, [PADDED]), mask=present > 0)
    tl.store(count, SHARED + tl.sum(present, 0))


@triton.jit
def _list_all(
    words, n, chosen, readers, count,
    E: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The list of the first n rows, whose words are read past a multiprocessor's cache."""
    row, lane = tl.arange(0, 16)[:, None], tl.arange(0, 32)[None, :]
    own = tl.load(words + row * 32 + lane, mask=row < n, other=0, cache_modifier=".cg")
    part = tl.arange(0, PADDED // 32)[:, None, None]
    bits = tl.reduce(((own[None, :, :] >> part) & 1) << row[None, :, :], 1, _either)
    _list(tl.reduce(own, 0, _either), bits, n, chosen, readers, count, E, SHARED, PADDED)


@triton.jit
def list_kernel(
    words, chosen, readers, count, rows,
    E: tl.constexpr, SHARED: tl.constexpr, PADDED: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The list of the rows that are left."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    _list_all(words, tl.load(rows), chosen, readers, count, E, SHARED, PADDED)


@triton.jit
def logits_kernel(
    x, weight, rows, logits,
    D: tl.constexpr, E: tl.constexpr, SPLIT: tl.constexpr, WARPS: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """logits [16, SPLIT, E + 1] of the scaled rows, a part of the inner dimension each.

    weight [E + 1, D]: router, then the shared gate.
    """
    WIDE: tl.constexpr = D // SPLIT
    COUNT: tl.constexpr = WIDE // WARPS // 32
    first, part = tl.program_id(0) * 16, tl.program_id(1)
    inner = part * WIDE + along(WIDE, WARPS)
    column, eight = first + tl.arange(0, 16), tl.arange(0, 8)[:, None, None]
    low = weight + tl.minimum(first + eight, E) * D + inner
    high = weight + tl.minimum(first + 8 + eight, E) * D + inner
    tiles = load_weights(low, high, COUNT)
    n = tl.load(rows)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    row, none = tl.arange(0, 8), tl.zeros([WARPS, 16, 8], tl.float32)
    for eight in range(tl.cdiv(n, 8)):
        own = load_eight(x + eight * 8 * D + inner, n - eight * 8, D, COUNT)
        sums = multiply_eight(tiles, own, none, 0, COUNT, WARPS, PRECISION)
        place = (row[None, :] * SPLIT + part) * (E + 1) + column[:, None]
        tl.store(logits + place, tl.sum(sums, 0), mask=(column <= E)[:, None] & (row < n)[None, :])
        row += 8


@triton.jit
def _logit(logits, expert, b_scale, E: tl.constexpr, SPLIT: tl.constexpr):
    """A row's logits of some experts; E: the shared one's gate."""
    z = tl.load(logits + expert, mask=expert <= E, other=0.0)
    for part in tl.static_range(1, SPLIT):
        z += tl.load(logits + part * (E + 1) + expert, mask=expert <= E, other=0.0)
    return z * b_scale


@triton.jit
def _pick(
    logits, b_scale, steered, shares,
    E: tl.constexpr, SHARED: tl.constexpr, TOP: tl.constexpr, PADDED: tl.constexpr,
    SPLIT: tl.constexpr, SUMS_TO_ONE: tl.constexpr, STEERED: tl.constexpr,
):  # fmt: skip
    """A row's experts, best first, and their shares, both by lane [32]; and which they are.

    Bit p of lane l in the third: expert 32 p + l. One warp; PADDED: power of two >= E. STEERED: of
    the experts in `steered` [TOP] alone. Writes the row's shares by expert.
    """
    PARTS: tl.constexpr = PADDED // 32
    lane = tl.arange(0, 32)
    keys = ()
    for part in tl.static_range(PARTS):
        expert = part * 32 + lane
        z = _logit(logits, expert, b_scale, E, SPLIT)
        keys += (tl.where(expert < E, _sortable(z), -(2**31)),)
    left = keys
    if STEERED:
        left = ()
        for part in tl.static_range(PARTS):
            is_in = lane < 0
            for i in tl.static_range(TOP):
                is_in |= tl.load(steered + i) == part * 32 + lane
            left += (tl.where(is_in, keys[part], -(2**31)),)
    best, share = tl.zeros([32], tl.int32), tl.zeros([32], tl.float32)
    word = tl.zeros([32], tl.int32)
    first, mass = 0.0, 0.0
    for i in tl.static_range(TOP):
        largest = left[0]
        for part in tl.static_range(1, PARTS):
            largest = tl.maximum(largest, left[part])
        top = tl.max(largest, 0)
        index = tl.full([32], E, tl.int32)
        for part in tl.static_range(PARTS - 1, -1, -1):
            index = tl.where(left[part] == top, part * 32 + lane, index)
        expert = tl.min(index, 0)
        if i == 0:
            first = _value(top)
        p = tl.exp(_value(top) - first)
        mass += p
        share = tl.where(lane == i, p, share)
        best = tl.where(lane == i, expert, best)
        word |= tl.where(lane == expert % 32, 1 << (expert // 32), 0)
        rest = ()
        for part in tl.static_range(PARTS):
            rest += (tl.where(expert == part * 32 + lane, -(2**31), left[part]),)
        left = rest
    if not SUMS_TO_ONE:
        mass = 0.0
        for part in tl.static_range(PARTS):
            p = tl.exp(_value(keys[part]) - first)
            mass += tl.sum(tl.where(part * 32 + lane < E, p, 0.0), 0)
    for part in tl.static_range(PARTS):
        p = tl.exp(_value(keys[part]) - first) / mass
        own = tl.where((word >> part) & 1 > 0, p, 0.0)
        tl.store(shares + part * 32 + lane, own, mask=part * 32 + lane < E)
    z = _logit(logits, E + 0 * lane, b_scale, E, SPLIT)
    tl.store(shares + E + lane, sigmoid(z), mask=lane < SHARED)
    return best, share / mass, word


@triton.jit
def pick_kernel(
    squares, logits, arrived, steered, length, rows,
    ids, weights, shares, scale, words, chosen, readers, count, eps,
    D: tl.constexpr, E: tl.constexpr, SHARED: tl.constexpr, TOP: tl.constexpr, TILES: tl.constexpr,
    PADDED: tl.constexpr, SPLIT: tl.constexpr, SUMS_TO_ONE: tl.constexpr, STEERED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One row; the program that arrives last lists the experts of all."""
    row, lane = tl.program_id(0), tl.arange(0, 32)
    n = tl.load(rows)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    if row < n:
        if STEERED:
            steered += (tl.load(length) + row).to(tl.int64) * TOP
        parts = read_squares(squares, row + tl.arange(0, 1), TILES, 1)
        b_scale = tl.sum(tl.reshape(row_scale(parts, eps, D), [1]), 0)
        best, share, word = _pick(
            logits + row * SPLIT * (E + 1), b_scale, steered, shares + row * (E + SHARED),
            E, SHARED, TOP, PADDED, SPLIT, SUMS_TO_ONE, STEERED,
        )  # fmt: skip
        tl.store(weights + row * TOP + lane, share, mask=lane < TOP)
        tl.store(ids + row * TOP + lane, best, mask=lane < TOP)
        tl.store(words + row * 32 + lane, word)
        tl.store(scale + row, b_scale)
        is_last = n == 1
        if n > 1:
            tl.debug_barrier()  # all of this row is written before it counts as arrived
            is_last = tl.atomic_add(arrived, 1) == n - 1
        if is_last:
            tl.store(arrived, 0)
            if n > 1:
                _list_all(words, n, chosen, readers, count, E, SHARED, PADDED)
            else:
                bits = (word[None, :] >> tl.arange(0, PADDED // 32)[:, None]) & 1
                _list(word, bits, n, chosen, readers, count, E, SHARED, PADDED)


def splits(D: int) -> int:
    """In how many parts the router's inner dimension D is summed."""
    return gcd(ROUTE_SPLIT, D // 32)


def route_stream(
    stream: Stream,
    weight: Tensor,
    rows: Tensor,
    eps: float,
    routing: Routing,
    steering: Steering | None = None,
    *,
    most_rows: int = MAX_ROWS,
) -> None:
    """Contract of the reference.

    most_rows: rows that a launch must have programs for. Raises ShapeError that names what does not
    fit.
    """
    D = check_stream(stream, rows)
    E, top = check_routing(routing)
    check_tensor("weight", weight, (E + 1, D), stream.scaled.dtype)
    split = routing.logits.shape[1]
    if D % (32 * split):
        raise ShapeError(f"the stream is {D} wide, which {split} splits of the router do not fit.")
    warps = warps_for(D // split, ROUTE_WARPS)
    overlapping = overlaps(weight.device)
    if steering is not None:
        check_tensor("steered", steering.table, (len(steering.table), top), torch.int32)
        check_tensor("length", steering.length, (), torch.int32)
    logits_kernel[triton.cdiv(E + 1, TILE), split](
        stream.scaled, weight, rows, routing.logits, D=D, E=E, SPLIT=split, WARPS=warps,
        PRECISION=precision(weight.dtype), OVERLAPS=overlapping, launch_pdl=overlapping,
        num_warps=warps,
    )  # fmt: skip
    pick_kernel[(most_rows,)](
        stream.squares, routing.logits, routing.arrived,
        routing.ids if steering is None else steering.table,
        routing.count if steering is None else steering.length, rows,
        routing.ids, routing.weights, routing.shares, routing.scale, routing.words,
        routing.chosen, routing.readers, routing.count, eps,
        D=D, E=E, SHARED=routing.pieces, TOP=top, TILES=stream.squares.shape[1], PADDED=padded(E),
        SPLIT=split, SUMS_TO_ONE=routing.sums_to_one, STEERED=steering is not None,
        OVERLAPS=overlapping, launch_pdl=overlapping, num_warps=1,
    )  # fmt: skip


def relist(routing: Routing, rows: Tensor) -> None:
    """Contract of the reference, in one launch of one program."""
    E, _ = check_routing(routing)
    check_tensor("rows", rows, (), torch.int32)
    overlapping = overlaps(rows.device)
    list_kernel[(1,)](
        routing.words, routing.chosen, routing.readers, routing.count, rows,
        E=E, SHARED=routing.pieces, PADDED=padded(E), OVERLAPS=overlapping,
        launch_pdl=overlapping, num_warps=1,
    )  # fmt: skip


def padded(E: int) -> int:
    """Power of two, 32 at least, that holds E experts."""
    return 1 << max(5, (E - 1).bit_length())


def check_routing(routing: Routing) -> tuple[int, int]:
    """How many experts there are, and how many a row chooses. Raises ShapeError."""
    E, top = routing.experts, routing.ids.shape[1]
    check_tensor("ids", routing.ids, (MAX_ROWS, top), torch.int32)
    check_tensor("weights", routing.weights, (MAX_ROWS, top), torch.float32)
    check_tensor("shares", routing.shares, (MAX_ROWS, E + routing.pieces), torch.float32)
    check_tensor("scale", routing.scale, (MAX_ROWS,), torch.float32)
    check_tensor(
        "logits", routing.logits, (MAX_ROWS, routing.logits.shape[1], E + 1), torch.float32
    )
    check_tensor("words", routing.words, (MAX_ROWS, 32), torch.int32)
    check_tensor("chosen", routing.chosen, (E + routing.pieces,), torch.int32)
    check_tensor("readers", routing.readers, (E + routing.pieces,), torch.int32)
    check_tensor("count", routing.count, (), torch.int32)
    check_tensor("arrived", routing.arrived, (), torch.int32)
    if not 1 <= E <= 1024 or not 1 <= routing.pieces <= 32 or top > min(32, E):
        raise ShapeError(
            f"routing is to {top} of {E} experts, a shared one beside them of {routing.pieces} "
            "pieces; the kernels take up to 32 of 1024, and 32 pieces."
        )
    return E, top
