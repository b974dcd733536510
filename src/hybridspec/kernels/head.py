# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false
"""From the residual stream to tokens, without a logit in memory.

Two launches replace norm, product, arg-max, second best and log-sum-exp. The first streams the
weight once (Qwen3.6-35B-A3B: 248320 x 2048 in bf16, 1.02 GB, 255 us at 4.0 TB/s) and leaves 12
bytes a tile and row, the second reduces those (0.4 MB at 128 words a tile). Every tile reads x,
64 KiB, out of the L2 cache.

What a reader gets wrong: the root mean square divides logits, not x. It is one positive number a
row, so the arg-max is taken on the fp32 accumulators themselves and the scale enters gaps and
log-odds alone. A row's numbers depend neither on `rows` nor on its place: every product has 16
rows, zeros where none count, and one order along D.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps
from hybridspec.kernels.reference.head import LOG_ODDS_LIMIT

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLaunch:
    """How the weight is streamed."""

    words: int
    """rows of the weight a program"""
    depth: int
    """columns of the weight a step"""
    stages: int
    warps: int
    is_transposed: bool
    """the weight is the left operand: 64 words or more then take warp-group instructions"""


# H200, November 2026, 248320 x 2048: 234 us (4.34 TB/s); eight others 233 to 247 us, and a prefetch
# of first lines before the wait gave nothing
HEAD = HeadLaunch(words=128, depth=128, stages=3, warps=4, is_transposed=True)
REDUCE_WARPS = 8


@triton.jit
def _product(
    x, weight, live, row, word,
    D: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, IS_TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """[ROWS, BLOCK_V] fp32; words beyond V repeat the last one."""
    lane = tl.arange(0, BLOCK_D)
    at = tl.minimum(word, V - 1).to(tl.int64) * D
    if IS_TRANSPOSED:
        p_left, p_right = weight + at[:, None] + lane[None, :], x + row[None, :] * D + lane[:, None]
        found = tl.zeros([BLOCK_V, ROWS], tl.float32)
        for begin in tl.range(0, D, BLOCK_D, num_stages=STAGES):
            b_left = tl.load(p_left + begin, eviction_policy="evict_first")
            b_right = tl.load(p_right + begin, mask=live[None, :], other=0.0)
            found = tl.dot(b_left, b_right, found, input_precision="ieee")
        return tl.trans(found)
    else:  # noqa: RET505  # the compiler takes one of the two
        p_left, p_right = x + row[:, None] * D + lane[None, :], weight + at[None, :] + lane[:, None]
        found = tl.zeros([ROWS, BLOCK_V], tl.float32)
        for begin in tl.range(0, D, BLOCK_D, num_stages=STAGES):
            b_left = tl.load(p_left + begin, mask=live[:, None], other=0.0)
            b_right = tl.load(p_right + begin, eviction_policy="evict_first")
            found = tl.dot(b_left, b_right, found, input_precision="ieee")
        return found


@triton.jit
def _tile_kernel(
    x, squares, weight, rows, bests, words, others, mask_token_id, eps,
    D: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
    SQUARES: tl.constexpr, BLOCK_SQUARES: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr, STAGES: tl.constexpr, IS_TRANSPOSED: tl.constexpr,
    IS_DRAFT: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Of BLOCK_V words: best, which, and second best or the sum of exp of all but the best."""
    i_tile = tl.program_id(0)
    row = tl.arange(0, ROWS)
    word = i_tile * BLOCK_V + tl.arange(0, BLOCK_V)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()  # not sooner: docs/gdn.md
    live = row < tl.load(rows)
    logits = _product(
        x, weight, live, row, word, D, V, ROWS, BLOCK_V, BLOCK_D, STAGES, IS_TRANSPOSED
    )
    counts = word < V
    if IS_DRAFT:
        counts = counts & (word != mask_token_id)
    logits = tl.where(counts[None, :], logits, float("-inf"))
    best = tl.max(logits, 1)
    which = tl.min(tl.where(logits == best[:, None], word[None, :], V - 1), 1)
    is_other = word[None, :] != which[:, None]
    out = row * TILES + i_tile
    tl.store(bests + out, best)
    tl.store(words + out, which)
    if IS_DRAFT:
        part = tl.arange(0, BLOCK_SQUARES)[None, :]
        b_squares = tl.load(
            squares + row[:, None] * SQUARES + part,
            mask=(part < SQUARES) & live[:, None],
            other=0.0,
        )
        scale = tl.rsqrt(tl.sum(b_squares, 1) / D + eps)
        share = tl.exp((logits - best[:, None]) * scale[:, None])
        # a tile without any word that counts has best -inf, and NaN here
        tl.store(others + out, tl.sum(tl.where(is_other & counts[None, :], share, 0.0), 1))
    else:
        tl.store(others + out, tl.max(tl.where(is_other, logits, float("-inf")), 1))


@triton.jit
def _reduce_kernel(
    squares, rows, bests, words, others, tokens, margins, eps,
    D: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
    BLOCK_TILES: tl.constexpr, SQUARES: tl.constexpr, BLOCK_SQUARES: tl.constexpr,
    LIMIT: tl.constexpr, IS_DRAFT: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One row over all tiles."""
    i_row = tl.program_id(0)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()
    tile = tl.arange(0, BLOCK_TILES)
    inside = tile < TILES
    at = i_row * TILES + tile
    b_best = tl.load(bests + at, mask=inside, other=float("-inf"))
    b_word = tl.load(words + at, mask=inside, other=V - 1)
    b_other = tl.load(others + at, mask=inside, other=0.0)
    part = tl.arange(0, BLOCK_SQUARES)
    is_live = i_row < tl.load(rows)
    b_squares = tl.load(
        squares + i_row * SQUARES + part, mask=(part < SQUARES) & is_live, other=0.0
    )
    scale = tl.rsqrt(tl.sum(b_squares, 0) / D + eps)
    best = tl.max(b_best, 0)
    token = tl.min(tl.where(b_best == best, b_word, V - 1), 0)
    tl.store(tokens + i_row, token.to(tl.int64))
    if IS_DRAFT:
        b_other += tl.where(b_word == token, 0.0, 1.0)  # a tile's own best, unless it is the token
        share = tl.where(b_best == float("-inf"), 0.0, tl.exp((b_best - best) * scale) * b_other)
        log_odds = -tl.log(tl.sum(share, 0))
        tl.store(margins + i_row, tl.minimum(tl.maximum(log_odds, -LIMIT), LIMIT))
    else:
        second = tl.max(tl.where(inside & (b_word == token), b_other, b_best), 0)
        tl.store(margins + i_row, (best - second) * scale)


def read_head_scaled(
    x: Tensor, squares: Tensor, weight: Tensor, rows: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Contract of the reference; the lowest index wins ties of the fp32 accumulators.

    D must be a multiple of HEAD.depth. Raises ShapeError that names what does not fit.
    """
    return _launch(x, squares, weight, rows, -1, eps, is_draft=False)


def draft_head_scaled(
    x: Tensor, squares: Tensor, weight: Tensor, rows: Tensor, mask_token_id: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Contract of the reference; likewise."""
    return _launch(x, squares, weight, rows, mask_token_id, eps, is_draft=True)


def _launch(
    x: Tensor,
    squares: Tensor,
    weight: Tensor,
    rows: Tensor,
    mask_token_id: int,
    eps: float,
    *,
    is_draft: bool,
) -> tuple[Tensor, Tensor]:
    V, D = weight.shape
    _check(x, squares, weight, rows)
    tiles = -(-V // HEAD.words)
    bests, others = (_scratch(x, tiles, torch.float32) for _ in range(2))
    words = _scratch(x, tiles, torch.int32)
    tokens = torch.empty(MAX_ROWS, dtype=torch.int64, device=x.device)
    margins = torch.empty(MAX_ROWS, dtype=torch.float32, device=x.device)
    overlapping = overlaps(x.device)
    common = {
        "D": D, "V": V, "ROWS": MAX_ROWS, "TILES": tiles, "SQUARES": squares.shape[1],
        "BLOCK_SQUARES": triton.next_power_of_2(squares.shape[1]), "IS_DRAFT": is_draft,
        "OVERLAPS": overlapping, "launch_pdl": overlapping,
    }  # fmt: skip
    _tile_kernel[(tiles,)](
        x, squares, weight, rows, bests, words, others, mask_token_id, eps, **common,
        BLOCK_V=HEAD.words, BLOCK_D=HEAD.depth, STAGES=HEAD.stages,
        IS_TRANSPOSED=HEAD.is_transposed, num_warps=HEAD.warps,
    )  # fmt: skip
    _reduce_kernel[(MAX_ROWS,)](
        squares, rows, bests, words, others, tokens, margins, eps, **common,
        BLOCK_TILES=triton.next_power_of_2(tiles), LIMIT=LOG_ODDS_LIMIT, num_warps=REDUCE_WARPS,
    )  # fmt: skip
    return tokens, margins


def _scratch(x: Tensor, tiles: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(MAX_ROWS, tiles, dtype=dtype, device=x.device)


def _check(x: Tensor, squares: Tensor, weight: Tensor, rows: Tensor) -> None:
    D = weight.shape[1]
    if D % HEAD.depth:
        raise ShapeError(f"weight is {D} wide; the kernel takes multiples of {HEAD.depth}.")
    check_tensor("weight", weight, tuple(weight.shape), *FLOATS)
    check_tensor("x", x, (MAX_ROWS, D), weight.dtype)
    check_tensor("squares", squares, (MAX_ROWS, squares.shape[1]), torch.float32)
    check_tensor("rows", rows, (), torch.int32)
