# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false
"""Attention of a block of up to 16 rows over a paged cache, on the device.

Positions are dealt out in blocks of BLOCK: split s takes blocks s, s + SPLITS, s + 2 SPLITS, ...
That depends on a position alone, so a row's arithmetic does not depend on the block of rows that it
came in; there are never more than SPLITS partial results of a row; and no launch grows with the
context. A program holds all 16 rows of HEADS query heads as one tile, in which each row is on its
own: rows that do not count are zeros, and positions that a row does not see add exact zeros.

What a reader gets wrong: the programs whose blocks hold new rows write them to the cache first and
read them back from it behind a barrier. So a key is the same number whether it came with this block
or an earlier one.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.kernels.gdn.rows import sigmoid


@triton.jit
def turned(
    x, weight, table, at, position, live, eps, D: tl.constexpr, R: tl.constexpr
):  # fmt: skip
    """A head's rows after norm and rotary, as the two parts that turn with each other.

    Rows start at x + at [M] and stand at `position` [M]; returns fp32 [M, D / R, R / 2] twice:
    dimensions R c + j and R c + R / 2 + j. Only those of c = 0 turn.
    """
    part = tl.arange(0, D // R)[None, :, None]
    lane = part * R + tl.arange(0, R // 2)[None, None, :]
    keep = live[:, None, None] & (lane < D)
    left = tl.load(x + at[:, None, None] + lane, mask=keep, other=0.0).to(tl.float32)
    right = tl.load(x + at[:, None, None] + lane + R // 2, mask=keep, other=0.0).to(tl.float32)
    squares = tl.sum(tl.sum(left * left + right * right, 2), 1)
    scale = tl.rsqrt(squares / D + eps)[:, None, None]
    left = left * scale * tl.load(weight + lane).to(tl.float32)
    right = right * scale * tl.load(weight + lane + R // 2).to(tl.float32)
    angle = table + position[:, None, None] * R + lane
    turns = keep & (part == 0)
    cos = tl.load(angle, mask=turns, other=1.0)
    sin = tl.load(angle + R // 2, mask=turns, other=0.0)
    return left * cos - right * sin, right * cos + left * sin


@triton.jit
def write_rows(
    x, k_norm, table, keys, values, at_k, at_v, position, live, i_kv, eps,
    HKV: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Keys, normed and turned, and values of one head at their positions in its pages."""
    left, right = turned(x, k_norm, table, at_k, position, live, eps, D, R)
    place = ((position // PAGE).to(tl.int64) * HKV + i_kv) * PAGE + position % PAGE
    lane = tl.arange(0, D // R)[None, :, None] * R + tl.arange(0, R // 2)[None, None, :]
    to = keys + place[:, None, None] * D + lane
    keep = live[:, None, None] & (lane < D)
    tl.store(to, left.to(keys.dtype.element_ty), mask=keep)
    tl.store(to + R // 2, right.to(keys.dtype.element_ty), mask=keep)
    column = tl.arange(0, D)[None, :]
    v = tl.load(x + at_v[:, None] + column, mask=live[:, None], other=0.0)
    tl.store(values + place[:, None] * D + column, v, mask=live[:, None])


@triton.jit
def first_block(length, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    """The first block of positions that a row of a block at `length` sees."""
    first = length * 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW + 1, 0) // BLOCK
    return first


@triton.jit
def split_kernel(
    projected, q_norm, k_norm, table, keys, values, length, rows, parts, peaks, masses, eps, SCALE,
    X_ROW: tl.constexpr, H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    PAGE: tl.constexpr, N: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr, HAS_GATE: tl.constexpr, IS_CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    PRECISION: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One split of HEADS query heads that share a key head: peak, mass and weighted values."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()  # not sooner: docs/gdn.md
    i_split, i_head = tl.program_id(0), tl.program_id(1) * HEADS
    i_kv = (i_head // (H // HKV)).to(tl.int64)
    start, count = tl.load(length), tl.load(rows)
    end = start + count
    first, blocks = first_block(start, WINDOW, BLOCK), (end + BLOCK - 1) // BLOCK
    begin = first + (i_split + SPLITS - first % SPLITS) % SPLITS
    if begin >= blocks:
        return
    K_AT: tl.constexpr = H * D * (2 if HAS_GATE else 1)

    if (start // BLOCK % SPLITS == i_split) | ((end - 1) // BLOCK % SPLITS == i_split):
        new = tl.arange(0, N)
        mine = (new < count) & ((start + new) // BLOCK % SPLITS == i_split)
        at_k = new * X_ROW + K_AT + i_kv * D
        write_rows(
            projected, k_norm, table, keys, values, at_k, at_k + HKV * D, start + new, mine, i_kv,
            eps, HKV, PAGE, D, R,
        )  # fmt: skip
        tl.debug_barrier()  # other threads of this program read what was written

    # [N * HEADS, D]: a row's heads stand together
    tile = tl.arange(0, N * HEADS)
    row, head = tile // HEADS, i_head + tile % HEADS
    live, own = row < count, start + row
    at_q = row * X_ROW + head * (K_AT // H)
    left, right = turned(projected, q_norm, table, at_q, own, live, eps, D, R)
    dtype = keys.dtype.element_ty
    q = tl.reshape(
        tl.permute(tl.join(left.to(dtype), right.to(dtype)), (0, 1, 3, 2)), [N * HEADS, D]
    )

    peak = tl.full([N * HEADS], -1e30, tl.float32)  # finite: a split may hold nothing for a row
    mass = tl.zeros([N * HEADS], tl.float32)
    seen = tl.zeros([N * HEADS, D], tl.float32)
    lane = tl.arange(0, BLOCK)
    tile_at = lane[:, None] * D + tl.arange(0, D)[None, :]
    for block in range(begin, blocks, SPLITS):
        at = (block * BLOCK // PAGE * HKV + i_kv) * PAGE + block * BLOCK % PAGE
        position = block * BLOCK + lane
        written = (position < end)[:, None]  # what lies beyond may be NaN
        k = tl.load(keys + at * D + tile_at, mask=written, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * SCALE
        visible = position[None, :] < end
        if IS_CAUSAL:
            visible &= position[None, :] <= own[:, None]
        if WINDOW > 0:
            visible &= own[:, None] - position[None, :] < WINDOW
            visible &= position[None, :] - own[:, None] < WINDOW
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        shares = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(peak - higher)
        mass = mass * fade + tl.sum(shares, 1)
        v = tl.load(values + at * D + tile_at, mask=written, other=0.0)
        seen = tl.dot(shares.to(dtype), v, seen * fade[:, None], input_precision=PRECISION)
        peak = higher

    to = (row * H + head) * SPLITS + i_split
    tl.store(peaks + to, peak, mask=live)
    tl.store(masses + to, mass, mask=live)
    column = tl.arange(0, D)[None, :]
    tl.store(parts + to[:, None] * D + column, seen, mask=live[:, None])


@triton.jit
def combine_kernel(
    projected, length, rows, parts, peaks, masses, out,
    X_ROW: tl.constexpr, H: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, HAS_GATE: tl.constexpr, IS_CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """BLOCK_D numbers of one row and head, from all splits that hold something for it.

    Not launched early: there is nothing to fetch.
    """
    if OVERLAPS:
        gdc_launch_dependents()
    i_row, i_head, i_d = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start, count = tl.load(length), tl.load(rows)
    if i_row >= count:
        return
    end = start + count
    if IS_CAUSAL:
        end = start + i_row + 1
    first = first_block(start, WINDOW, BLOCK)
    split = tl.arange(0, SPLITS)
    live = (split + SPLITS - first % SPLITS) % SPLITS < (end + BLOCK - 1) // BLOCK - first
    column = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
    at = (i_row * H + i_head) * SPLITS + split
    peak = tl.load(peaks + at, mask=live, other=-1e30)
    mass = tl.load(masses + at, mask=live, other=0.0)
    part = tl.load(parts + at[:, None] * D + column[None, :], mask=live[:, None], other=0.0)
    share = tl.exp2(peak - tl.max(peak, 0))
    y = tl.sum(part * share[:, None], 0) / tl.sum(mass * share, 0)
    if HAS_GATE:
        gate = tl.load(projected + i_row * X_ROW + i_head * 2 * D + D + column).to(tl.float32)
        y = y * sigmoid(gate)
    tl.store(out + (i_row * H + i_head) * D + column, y)


@triton.jit
def context_kernel(
    projected, k_norm, table, keys, values, start, rows, eps,
    X_ROW: tl.constexpr, X_LAYER: tl.constexpr, LAYER: tl.constexpr, HKV: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Keys and values of BLOCK_N context rows of one layer and head."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    i_row, i_kv = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    i_layer = tl.program_id(2).to(tl.int64)
    count = tl.load(rows)
    if i_row >= count:
        return
    row = i_row + tl.arange(0, BLOCK_N)
    at_k = row * X_ROW + i_kv * D
    write_rows(
        projected + i_layer * X_LAYER, k_norm + i_layer * D, table,
        keys + i_layer * LAYER, values + i_layer * LAYER, at_k, at_k + HKV * D,
        tl.load(start) + row, row < count, i_kv, eps, HKV, PAGE, D, R,
    )  # fmt: skip
