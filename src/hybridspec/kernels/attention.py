# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: reportCallIssue=false
"""Attention over a paged cache in two launches: checks and launches of kernels/paged.py.

Replaces norms, rotary, writing the cache, attention and the gate of the references (some 20
launches). It moves the keys and values of all positions once, 2 HKV D numbers each (2 KiB a
position of a Qwen3.6-35B-A3B layer in bf16, 134 MB at 64 K), and at most SPLITS partial results a
row and query head, D + 2 floats each, written and read once.

Counts are read on the device: launches are the same whatever they say, so they may be captured in a
CUDA graph. A row of `attend_gated` equals, bit for bit, the same row read in any other block.
"""

import math

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.launch import ShapeError, check_tensor, overlaps
from hybridspec.kernels.paged import combine_kernel, context_kernel, split_kernel
from hybridspec.kernels.reference.attention import PAGE

WIDTHS = (16, 32, 64, 128, 256)
"""of a head"""
GROUPS = (1, 2, 4, 8, 16)
"""query heads a key head"""
# H200, December 2026, 35B shape: a plain step of 2418 us and a draft of 842 take 2642 and 869 with
# 4 warps, 2456 and 867 with 4 heads, 2446 and 917 with 64 programs, 2427 and 868 with 128 columns
PROGRAMS = 128  # of the split kernel, over all heads: one wave of 132 multiprocessors
# positions a step, by D; more splits of a short context, but of 16 rows more partial results too
BLOCKS = {16: 64, 32: 64, 64: 64, 128: 64, 256: 32}  # 64 of 256 spill 8 bytes a thread
HEADS = 8  # query heads a program, of one key head; 16 rows of 8 heads of 256 fill its registers
SPLIT_WARPS, SPLIT_STAGES = 8, 3
COMBINE_COLUMNS, COMBINE_WARPS = 64, 4
CONTEXT_ROWS, CONTEXT_WARPS = 4, 4


def attend_gated(
    projected: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    eps: float,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    rows: Tensor,
) -> Tensor:
    """Contract of the reference; rows of the result from `rows` on are not written.

    projected, q_norm, k_norm, keys and values in one dtype; what is stale, in rows or in pages, may
    hold anything, NaN included. D in WIDTHS, H / HKV in GROUPS, R and PAGE as the references have.
    """
    HKV, D = keys.shape[1], keys.shape[-1]
    H = (projected.shape[-1] // D - 2 * HKV) // 2
    return _attend(
        projected, q_norm, k_norm, eps, rotary, keys, values, length, rows,
        H=H, has_gate=True, is_causal=True, window=None,
    )  # fmt: skip


def attend_block(
    projected: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    eps: float,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    rows: Tensor,
    *,
    window: int | None,
    is_causal: bool,
) -> Tensor:
    """Contract of the reference; otherwise as attend_gated."""
    HKV, D = keys.shape[1], keys.shape[-1]
    H = projected.shape[-1] // D - 2 * HKV
    return _attend(
        projected, q_norm, k_norm, eps, rotary, keys, values, start, rows,
        H=H, has_gate=False, is_causal=is_causal, window=window,
    )  # fmt: skip


def write_context(
    projected: Tensor,
    k_norm: Tensor,
    eps: float,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    rows: Tensor,
) -> None:
    """Contract of the reference, in one launch that moves each number once; any number of rows."""
    L, _, HKV, _, D = keys.shape
    _check_cache(keys, values, (L, keys.shape[1], HKV, PAGE, D))
    check_tensor("projected", projected, (projected.shape[0], L, 2 * HKV * D), keys.dtype)
    check_tensor("k_norm", k_norm, (L, D), keys.dtype)
    _check_counts(start=start, rows=rows)
    R = _rotary_dims(rotary, D)
    overlapping = overlaps(projected.device)
    context_kernel[-(-projected.shape[0] // CONTEXT_ROWS), HKV, L](
        projected, k_norm, rotary, keys, values, start, rows, eps,
        X_ROW=L * 2 * HKV * D, X_LAYER=2 * HKV * D, LAYER=keys.stride(0), HKV=HKV, D=D, R=R,
        PAGE=PAGE, BLOCK_N=CONTEXT_ROWS, OVERLAPS=overlapping, launch_pdl=overlapping,
        num_warps=CONTEXT_WARPS,
    )  # fmt: skip


def _attend(
    projected: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    eps: float,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    rows: Tensor,
    *,
    H: int,
    has_gate: bool,
    is_causal: bool,
    window: int | None,
) -> Tensor:
    P, HKV, _, D = keys.shape
    _check_cache(keys, values, (P, HKV, PAGE, D))
    if H < 1 or H % HKV or H // HKV not in GROUPS:
        raise ShapeError(
            f"projected {tuple(projected.shape)} holds {H} query heads of {D} beside {HKV} key "
            f"heads; the kernels take {', '.join(map(str, GROUPS))} a key head."
        )
    N, width = projected.shape[0], ((2 if has_gate else 1) * H + 2 * HKV) * D
    if N > MAX_ROWS:
        raise ShapeError(f"projected holds {N} rows; the kernels take up to {MAX_ROWS}.")
    check_tensor("projected", projected, (N, width), keys.dtype)
    check_tensor("q_norm", q_norm, (D,), keys.dtype)
    check_tensor("k_norm", k_norm, (D,), keys.dtype)
    _check_counts(length=length, rows=rows)
    if window is not None and window < 1:
        raise ShapeError(f"window must be at least 1, got {window}.")
    heads = min(HEADS, H // HKV)
    splits = max(1, PROGRAMS // (1 << (H // heads - 1).bit_length()))
    partial = (MAX_ROWS, H, splits)
    parts, peaks, masses = (
        torch.empty(size, dtype=torch.float32, device=projected.device)
        for size in ((*partial, D), partial, partial)
    )
    out = torch.empty(N, H * D, dtype=projected.dtype, device=projected.device)
    overlapping = overlaps(projected.device)
    shared = {
        "X_ROW": width, "H": H, "D": D, "SPLITS": splits, "BLOCK": BLOCKS[D], "HAS_GATE": has_gate,
        "IS_CAUSAL": is_causal, "WINDOW": window or 0, "OVERLAPS": overlapping,
    }  # fmt: skip
    split_kernel[splits, H // heads](
        projected, q_norm, k_norm, rotary, keys, values, length, rows, parts, peaks, masses,
        eps, D**-0.5 * math.log2(math.e),
        HKV=HKV, R=_rotary_dims(rotary, D), PAGE=PAGE, N=MAX_ROWS, HEADS=heads,
        PRECISION="ieee" if keys.dtype == torch.float32 else "tf32", **shared,
        launch_pdl=overlapping, num_warps=SPLIT_WARPS, num_stages=SPLIT_STAGES,
    )  # fmt: skip
    columns = min(COMBINE_COLUMNS, D)
    combine_kernel[N, H, D // columns](
        projected, length, rows, parts, peaks, masses, out,
        BLOCK_D=columns, **shared, num_warps=COMBINE_WARPS,
    )  # fmt: skip
    return out


def _check_cache(keys: Tensor, values: Tensor, shape: tuple[int, ...]) -> None:
    if shape[-1] not in WIDTHS:
        known = ", ".join(map(str, WIDTHS))
        raise ShapeError(f"keys are {shape[-1]} wide; the kernels take {known}.")
    check_tensor("keys", keys, shape, keys.dtype)
    check_tensor("values", values, shape, keys.dtype)


def _check_counts(**counts: Tensor) -> None:
    for name, count in counts.items():
        check_tensor(name, count, (), torch.int32)


def _rotary_dims(rotary: Tensor, D: int) -> int:
    """R, of which the rotary table holds cosines and sines."""
    R = 2 * rotary.shape[-1]
    if R < 2 or R & (R - 1) or R > D:
        raise ShapeError(f"rotary turns {R} of {D} dimensions; it must be a power of two of them.")
    check_tensor("rotary", rotary, (rotary.shape[0], 2, R // 2), torch.float32)
    return R
