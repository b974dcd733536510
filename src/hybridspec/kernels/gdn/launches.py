# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: reportCallIssue=false
"""Checks and launches of the GDN kernels; the docstrings say what differs from the references."""

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.gdn.block import block_kernel
from hybridspec.kernels.gdn.commit import commit_kernel
from hybridspec.kernels.gdn.exact import prepare_kernel, walk_kernel
from hybridspec.kernels.launch import INTERPRETED, ShapeError, check_tensor, overlaps
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState, GdnWeights
from hybridspec.kernels.reference.norm import HeadGate

WIDTHS = (16, 32, 64, 128, 256)
"""of keys and of values"""
CONV = 4
THIRD = tl.float32 if INTERPRETED else tl.bfloat16
# H200, November 2026, 30 layers of the 35B shape at 16 rows, before heads were gated here
PREPARE_ROWS, PREPARE_WARPS = 4, 4  # 58 us; 2 warps 63, 16 rows 76
# by K: 8 of 256 spill 104 bytes a thread
WALK_COLUMNS = {16: 8, 32: 8, 64: 8, 128: 8, 256: 4}
# December 2026, chosen while the product behind it still found room beside it
WALK_REGISTERS = 128
WALK_LANES = 16  # 316 us with `prepare`, when the walk triggered after its wait; 32 lanes slower
BLOCK_COLUMNS, BLOCK_WARPS = 32, 8  # 158 us; with bf16 halves 155, 64 columns 194, 4 warps 197
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
    gate: HeadGate | None = None,
) -> Tensor:
    """Row by row; outputs [..., N, HV, V] in qkv's dtype, undefined from `rows` on.

    With a gate they are gated; its squares come in groups of WALK_COLUMNS[K] columns.
    """
    sizes = _check(qkv, a, b, weights, state, records, rows)
    B, N, H, HV, K, V = (getattr(sizes, name) for name in ("B", "N", "H", "HV", "K", "V"))
    device, modes = qkv.device, _modes(qkv, records)
    queries = torch.empty(B, N, H, K, dtype=torch.float32, device=device)
    values = torch.empty(B, N, HV, V, dtype=torch.float32, device=device)
    gates = torch.empty(B, N, HV, 2, dtype=torch.float32, device=device)
    y = torch.empty(*qkv.shape[:-1], HV, V, dtype=qkv.dtype, device=device)
    block_n, columns = min(PREPARE_ROWS, N), WALK_COLUMNS[K]
    gating = _gate(gate, y, columns)
    prepare_kernel[2 * H + HV, N // block_n, B](
        qkv, a, b, weights.conv, weights.decay_rate, weights.dt_bias, state.conv, rows,
        records.inputs, queries, values, gates, records.keys, records.log_decays,
        **sizes.of_layer(), CONV=CONV, **_strides(qkv, a), BLOCK_N=block_n, **modes,
        num_warps=PREPARE_WARPS,
    )  # fmt: skip
    walk_kernel[V // columns, HV, B](
        state.recurrent, rows, queries, records.keys, values, gates, y, records.updates,
        **gating,
        H=H, HV=HV, K=K, V=V, N=N, BLOCK_V=columns, LANES_K=WALK_LANES,
        OVERLAPS=modes["OVERLAPS"], launch_pdl=modes["launch_pdl"], num_warps=1,
        maxnreg=WALK_REGISTERS,
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
    gate: HeadGate | None = None,
) -> Tensor:
    """In block form; outputs [..., N, HV, V] in qkv's dtype, undefined from `rows` on.

    N = MAX_ROWS. With a gate they are gated; its squares come in groups of WALK_COLUMNS[K] columns.
    """
    sizes = _check(qkv, a, b, weights, state, records, rows)
    if sizes.N != MAX_ROWS:
        raise ShapeError(f"a block is verified in {MAX_ROWS} rows; qkv holds {sizes.N}: pad it.")
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
        **_gate(gate, y, WALK_COLUMNS[sizes.K]), GROUP=min(columns, WALK_COLUMNS[sizes.K]),
        **sizes.of_layer(), CONV=CONV, **_strides(qkv, a), BLOCK_V=columns, THIRD=THIRD,
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
    items = (L, *rows.shape)
    _check_shapes(
        f"counts {tuple(rows.shape)} and {L} layers",
        recurrent=(recurrent, (*items, HV, K, V)),
        conv=(conv, (*items, CONV - 1, 2 * H * K + HV * V)),
        **_of_records(records, items, (N, H, HV, K, V)),
    )
    if not is_exact and N != MAX_ROWS:
        raise ShapeError(f"commit_block takes records of {MAX_ROWS} rows, got {N}: use commit.")
    _check_rows(rows, HV, H)
    _check_records(records, conv.dtype)
    _check_state(conv, recurrent)
    limit = EXACT_COMMIT_COLUMNS if is_exact else BLOCK_COMMIT_COLUMNS
    columns = min(limit, V)
    commit_kernel[V // columns, HV + 1, L * B](
        conv, recurrent, records.inputs, records.keys, records.updates, records.log_decays, rows,
        B=B, H=H, HV=HV, K=K, V=V, CONV=CONV, N=N, C=C, BLOCK_V=columns,
        BLOCK_C=COMMIT_CHANNELS, IS_EXACT=is_exact,
        num_warps=EXACT_COMMIT_WARPS if is_exact else BLOCK_COMMIT_WARPS,
    )  # fmt: skip


def head_groups(K: int, V: int) -> int:
    """In how many groups of columns the squares of a gated head come."""
    return V // WALK_COLUMNS[K]


def _gate(gate: HeadGate | None, y: Tensor, columns: int) -> dict[str, Tensor | int]:
    """Raises ShapeError where gate, weight or squares do not fit outputs y [N, HV, V]."""
    if gate is None:
        return {"z": y, "norm": y, "squares": y, "Z_ROW": 0}
    if y.dim() != 3:
        raise ShapeError("a gate takes rows of one request: verify requests one by one.")
    N, HV, V = y.shape
    if gate.z.shape != y.shape or gate.z.dtype != y.dtype or gate.z.stride()[1:] != (V, 1):
        raise ShapeError(
            f"z must be {y.dtype} {(N, HV, V)}, its heads one after another, got {gate.z.dtype} "
            f"{tuple(gate.z.shape)}, strides {gate.z.stride()}."
        )
    check_tensor("norm", gate.weight, (V,), gate.weight.dtype)
    check_tensor("squares", gate.squares, (N, HV, V // columns), torch.float32)
    return {"z": gate.z, "norm": gate.weight, "squares": gate.squares, "Z_ROW": gate.z.stride(0)}


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
    N, H, items = qkv.shape[-2], records.keys.shape[-2], tuple(qkv.shape[:-2])
    C = 2 * H * K + HV * V
    _check_shapes(
        f"qkv {tuple(qkv.shape)} and {H} key heads",
        qkv=(qkv, (*items, N, C)),
        a=(a, (*items, N, HV)),
        b=(b, (*items, N, HV)),
        rows=(rows, items),
        weights_conv=(weights.conv, (CONV, C)),
        weights_decay_rate=(weights.decay_rate, (HV,)),
        weights_dt_bias=(weights.dt_bias, (HV,)),
        state_conv=(state.conv, (*items, CONV - 1, C)),
        state_recurrent=(state.recurrent, (*items, HV, K, V)),
        **_of_records(records, items, (N, H, HV, K, V)),
    )
    _check_rows(rows, HV, H)
    if N % PREPARE_ROWS and N not in (1, 2):
        raise ShapeError(f"qkv holds {N} rows; the kernels take 1, 2 or multiples of 4: pad it.")
    if a.stride() != b.stride() or qkv.stride(-1) != 1 or a.stride(-1) != 1:
        raise ShapeError("qkv, a and b must be contiguous along a row, a and b laid out alike.")
    if not weights.conv.is_contiguous():
        raise ShapeError("weights_conv must be contiguous.")
    if state.conv.dtype != qkv.dtype:
        raise ShapeError(f"state_conv must be {qkv.dtype} as qkv is, got {state.conv.dtype}.")
    _check_records(records, qkv.dtype)
    _check_state(state.conv, state.recurrent)
    return _Sizes(B=rows.numel(), N=N, H=H, HV=HV, K=K, V=V, C=C)


def _check_shapes(beside: str, **wanted: tuple[Tensor, tuple[int, ...]]) -> None:
    for name, (tensor, shape) in wanted.items():
        if tensor.shape != shape:
            raise ShapeError(f"{name} must be {shape} beside {beside}, got {tuple(tensor.shape)}.")


def _of_records(
    records: GdnRecords, items: tuple[int, ...], sizes: tuple[int, int, int, int, int]
) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    N, H, HV, K, V = sizes
    return {
        "records_inputs": (records.inputs, (*items, N, 2 * H * K + HV * V)),
        "records_keys": (records.keys, (*items, N, H, K)),
        "records_updates": (records.updates, (*items, N, HV, V)),
        "records_log_decays": (records.log_decays, (*items, N, HV)),
    }


def _check_rows(rows: Tensor, HV: int, H: int) -> None:
    if HV % H:
        raise ShapeError(f"{HV} value heads are no multiple of {H} key heads.")
    if rows.dtype != torch.int32 or not rows.is_contiguous():
        raise ShapeError(f"rows must be int32 and contiguous, got {rows.dtype}.")


def _check_records(records: GdnRecords, dtype: torch.dtype) -> None:
    for name in ("inputs", "keys", "updates", "log_decays"):
        tensor, wanted = getattr(records, name), dtype if name == "inputs" else torch.float32
        if tensor.dtype != wanted or not tensor.is_contiguous():
            raise ShapeError(f"records_{name} must be {wanted} and contiguous: {tensor.dtype}.")


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
