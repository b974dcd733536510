# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: reportCallIssue=false
"""Checks and launches of the GDN kernels; the docstrings say what differs from the references."""

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from hybridspec.kernels.gdn.block import block_kernel
from hybridspec.kernels.gdn.commit import commit_kernel
from hybridspec.kernels.gdn.exact import prepare_kernel, walk_kernel
from hybridspec.kernels.launch import INTERPRETED, ShapeError, overlaps
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState, GdnWeights

WIDTHS = (16, 32, 64, 128, 256)
"""of keys and of values"""
CONV = 4
HALF = tl.float32 if INTERPRETED else tl.bfloat16
# H200, November 2026, 30 layers of the 35B shape at 16 rows
PREPARE_ROWS, PREPARE_WARPS = 4, 4  # 58 us; 2 warps 63, 16 rows 76
WALK_COLUMNS, WALK_LANES = 8, 16  # 255 us; of 32: 390, 4 columns of 32 347
BLOCK_COLUMNS, BLOCK_WARPS = 32, 8  # 155 us; 64 columns 194, 4 warps 197, 16 warps 225
EXACT_COMMIT_COLUMNS, EXACT_COMMIT_WARPS = 8, 1  # 69 us; 32 columns and 4 warps 73
BLOCK_COMMIT_COLUMNS, BLOCK_COMMIT_WARPS = 16, 2  # 45 us; 32 columns 45 to 48, 64 columns 79
COMMIT_CHANNELS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    B: int
    N: int
    H: int
    HV: int
    K: int
    V: int
    C: int

    def of_layer(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("H", "HV", "K", "V", "N", "C")}


def verify_exact(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
) -> Tensor:
    """Row by row; outputs [..., N, HV, V] in qkv's dtype, undefined from `rows` on."""
    sizes = _check(qkv, a, b, weights, state, records, rows)
    B, N, H, HV, K, V = (getattr(sizes, name) for name in ("B", "N", "H", "HV", "K", "V"))
    device, modes = qkv.device, _modes(qkv, records)
    queries = torch.empty(B, N, H, K, dtype=torch.float32, device=device)
    values = torch.empty(B, N, HV, V, dtype=torch.float32, device=device)
    gates = torch.empty(B, N, HV, 2, dtype=torch.float32, device=device)
    y = torch.empty(*qkv.shape[:-1], HV, V, dtype=qkv.dtype, device=device)
    block_n = min(PREPARE_ROWS, N)
    prepare_kernel[2 * H + HV, N // block_n, B](
        qkv, a, b, weights.conv, weights.decay_rate, weights.dt_bias, state.conv, rows,
        records.inputs, queries, values, gates, records.keys, records.log_decays,
        **sizes.of_layer(), CONV=CONV, **_strides(qkv, a), BLOCK_N=block_n, **modes,
        num_warps=PREPARE_WARPS,
    )  # fmt: skip
    walk_kernel[V // WALK_COLUMNS, HV, B](
        state.recurrent, rows, queries, records.keys, values, gates, y, records.updates,
        H=H, HV=HV, K=K, V=V, N=N, BLOCK_V=WALK_COLUMNS, LANES_K=WALK_LANES,
        OVERLAPS=modes["OVERLAPS"], launch_pdl=modes["launch_pdl"], num_warps=1,
    )  # fmt: skip
    return y


def verify_block(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
) -> Tensor:
    """In block form; outputs [..., N, HV, V] in qkv's dtype, undefined from `rows` on. N = 16."""
    sizes = _check(qkv, a, b, weights, state, records, rows)
    if sizes.N != 16:
        raise ShapeError(f"a block is verified in 16 rows; qkv holds {sizes.N}: pad it.")
    columns = min(BLOCK_COLUMNS, sizes.V)
    y = torch.empty(*qkv.shape[:-1], sizes.HV, sizes.V, dtype=qkv.dtype, device=qkv.device)
    tiles = sizes.V // columns
    scratch = torch.empty(
        sizes.B * sizes.HV * tiles * 2 * sizes.N**2, dtype=torch.float32, device=qkv.device
    )
    block_kernel[tiles, sizes.HV, sizes.B](
        qkv, a, b, weights.conv, weights.decay_rate, weights.dt_bias,
        state.conv, state.recurrent, rows,
        y, records.inputs, records.updates, records.keys, records.log_decays, scratch,
        **sizes.of_layer(), CONV=CONV, **_strides(qkv, a), BLOCK_V=columns, HALF=HALF,
        **_modes(qkv, records), num_warps=BLOCK_WARPS,
    )  # fmt: skip
    return y


def commit(conv: Tensor, recurrent: Tensor, records: GdnRecords, rows: Tensor) -> None:
    """The recurrence row by row: equal, bit for bit, to plain decoding."""
    _commit(conv, recurrent, records, rows, is_exact=True)


def commit_block(conv: Tensor, recurrent: Tensor, records: GdnRecords, rows: Tensor) -> None:
    """As one product a head: within 1e-5 of the recurrence, and quicker for many rows."""
    _commit(conv, recurrent, records, rows, is_exact=False)


def _commit(
    conv: Tensor, recurrent: Tensor, records: GdnRecords, rows: Tensor, *, is_exact: bool
) -> None:
    L, HV, K, V = recurrent.shape[0], *recurrent.shape[-3:]
    N, H = records.keys.shape[-3:-1]
    C, B = conv.shape[-1], rows.numel()
    if recurrent.shape[:-3] != (L, *rows.shape) or records.inputs.shape != (L, *rows.shape, N, C):
        raise ShapeError(
            f"states {tuple(recurrent.shape)} and inputs {tuple(records.inputs.shape)} must both "
            f"be of {L} layers and of as many requests as there are counts, {tuple(rows.shape)}."
        )
    _check_state(conv, recurrent)
    limit = EXACT_COMMIT_COLUMNS if is_exact else BLOCK_COMMIT_COLUMNS
    columns = min(limit, V)
    commit_kernel[V // columns, HV + 1, L * B](
        conv, recurrent, records.inputs, records.keys, records.updates, records.log_decays, rows,
        B=B, H=H, HV=HV, K=K, V=V, CONV=CONV, N=N, C=C, BLOCK_V=columns,
        BLOCK_C=COMMIT_CHANNELS, HALF=HALF, IS_EXACT=is_exact,
        num_warps=EXACT_COMMIT_WARPS if is_exact else BLOCK_COMMIT_WARPS,
    )  # fmt: skip


def _modes(qkv: Tensor, records: GdnRecords) -> dict[str, bool]:
    overlapping = overlaps(qkv.device)
    return {
        "KEEPS_INPUTS": qkv.data_ptr() != records.inputs.data_ptr(),
        "OVERLAPS": overlapping,
        "launch_pdl": overlapping,
    }


def _strides(qkv: Tensor, a: Tensor) -> dict[str, int]:
    return {
        "X_ROW": qkv.stride(-2),
        "X_ITEM": qkv.stride(0) if qkv.dim() == 3 else 0,
        "A_ROW": a.stride(-2),
        "A_ITEM": a.stride(0) if a.dim() == 3 else 0,
    }


def _check(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
) -> _Sizes:
    """Raises ShapeError that names what does not fit."""
    HV, K, V = state.recurrent.shape[-3:]
    N, C = qkv.shape[-2:]
    H = records.keys.shape[-2]
    items = tuple(qkv.shape[:-2])
    wanted = {
        "a": (a, (*items, N, HV)),
        "b": (b, (*items, N, HV)),
        "rows": (rows, items),
        "conv's weight": (weights.conv, (CONV, 2 * H * K + HV * V)),
        "conv's state": (state.conv, (*items, CONV - 1, C)),
        "records' inputs": (records.inputs, (*items, N, C)),
        "records' updates": (records.updates, (*items, N, HV, V)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ShapeError(
                f"{name} must be {shape} beside qkv {tuple(qkv.shape)}, got {tuple(tensor.shape)}."
            )
    if HV % H:
        raise ShapeError(f"{HV} value heads are no multiple of {H} key heads.")
    if a.stride() != b.stride() or qkv.stride(-1) != 1 or a.stride(-1) != 1:
        raise ShapeError("qkv, a and b must be contiguous along a row, a and b laid out alike.")
    if rows.dtype != torch.int32:
        raise ShapeError(f"rows must be int32, got {rows.dtype}.")
    _check_state(state.conv, state.recurrent)
    return _Sizes(B=rows.numel(), N=N, H=H, HV=HV, K=K, V=V, C=C)


def _check_state(conv: Tensor, recurrent: Tensor) -> None:
    K, V = recurrent.shape[-2:]
    for name, width in (("keys", K), ("values", V)):
        if width not in WIDTHS:
            known = ", ".join(map(str, WIDTHS))
            raise ShapeError(f"{name} are {width} wide; the kernels take {known}.")
    if recurrent.dtype != torch.float32 or not recurrent.mT.is_contiguous():
        raise ShapeError(
            "the recurrent state must be float32 and lie as [..., HV, V, K] in memory: "
            f"take .mT of such a tensor (got {recurrent.dtype}, strides {recurrent.stride()})."
        )
    if not conv.is_contiguous():
        raise ShapeError("the convolution's state must be contiguous.")
