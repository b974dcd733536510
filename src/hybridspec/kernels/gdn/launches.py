# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: reportCallIssue=false
"""Checks and launches of the GDN kernels; the docstrings say what differs from the references."""

from dataclasses import dataclass
from math import gcd

import torch
import triton.language as tl
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.gdn.block import block_kernel
from hybridspec.kernels.gdn.commit import commit_kernel
from hybridspec.kernels.gdn.exact import convolve_kernel, walk_kernel
from hybridspec.kernels.gdn.rows import CONV
from hybridspec.kernels.launch import INTERPRETED, ShapeError, check_tensor, overlaps
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState, GdnWeights
from hybridspec.kernels.reference.norm import HeadGate

WIDTHS = (16, 32, 64, 128, 256)
"""of keys and of values"""
THIRD = tl.float32 if INTERPRETED else tl.bfloat16
CONVOLVE_CHANNELS, CONVOLVE_ROWS, CONVOLVE_WARPS = 128, 4, 4
# by K: 8 of 256 spill 104 bytes a thread
WALK_COLUMNS = {16: 8, 32: 8, 64: 8, 128: 8, 256: 4}
WALK_REGISTERS = 255  # H200, December 2026, 16 rows: 0.5 % of a pass before 168, 4 % before 128
WALK_LANES = 16  # 32 are slower
# H200, November 2026, 30 layers of the 35B shape at 16 rows, before heads were gated here
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
    """Row by row, in two launches; outputs [..., N, HV, V] in qkv's dtype, stale from `rows` on.

    With a gate they are gated; its squares come in groups of WALK_COLUMNS[K] columns.
    """
    sizes = _check(qkv, a, b, weights, state, records, rows, qkv.dtype)
    B, N, C = sizes.B, sizes.N, sizes.C
    y, gating = _outputs(a, sizes, gate)
    mixed = torch.empty(qkv.shape, dtype=torch.float32, device=qkv.device)
    block_n, block_c = min(CONVOLVE_ROWS, N), gcd(CONVOLVE_CHANNELS, C)
    convolve_kernel[C // block_c, N // block_n, B](
        qkv, weights.conv, state.conv, rows, records.inputs, mixed,
        N=N, C=C, **_strides("X", qkv), BLOCK_N=block_n, BLOCK_C=block_c, CONV=CONV,
        **_modes(qkv, records), num_warps=CONVOLVE_WARPS,
    )  # fmt: skip
    _walk(mixed, a, b, weights, state, records, rows, sizes, y, gating)
    return y


def walk(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
    gate: HeadGate | None = None,
) -> Tensor:
    """verify_exact behind the convolution, in one launch; outputs in the dtype of a.

    mixed [..., N, C] float32, contiguous
    """
    sizes = _check(mixed, a, b, weights, state, records, rows, a.dtype)
    check_tensor("mixed", mixed, tuple(mixed.shape), torch.float32)
    y, gating = _outputs(a, sizes, gate)
    _walk(mixed, a, b, weights, state, records, rows, sizes, y, gating)
    return y


def _walk(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
    sizes: _Sizes,
    y: Tensor,
    gating: dict[str, Tensor | int],
) -> None:
    columns, overlapping = WALK_COLUMNS[sizes.K], overlaps(mixed.device)
    walk_kernel[sizes.V // columns, sizes.HV, sizes.B](
        state.recurrent, rows, mixed, a, b, weights.decay_rate, weights.dt_bias, y,
        records.updates, records.keys, records.log_decays, **gating,
        **sizes.of_layer(), **_strides("A", a), BLOCK_V=columns, LANES_K=WALK_LANES,
        OVERLAPS=overlapping, launch_pdl=overlapping, num_warps=1, maxnreg=WALK_REGISTERS,
    )  # fmt: skip


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
    sizes = _check(qkv, a, b, weights, state, records, rows, qkv.dtype)
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
        **sizes.of_layer(), CONV=CONV, **_strides("X", qkv), **_strides("A", a),
        BLOCK_V=columns, THIRD=THIRD, **_modes(qkv, records), num_warps=BLOCK_WARPS,
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


def _strides(letter: str, x: Tensor) -> dict[str, int]:
    """Of rows, and of requests if there are several."""
    return {f"{letter}_ROW": x.stride(-2), f"{letter}_ITEM": x.stride(0) if x.dim() == 3 else 0}


def _outputs(
    a: Tensor, sizes: _Sizes, gate: HeadGate | None
) -> tuple[Tensor, dict[str, Tensor | int]]:
    """Empty outputs, and the walk's arguments for their gate."""
    y = torch.empty(*a.shape, sizes.V, dtype=a.dtype, device=a.device)
    return y, _gate(gate, y, WALK_COLUMNS[sizes.K])


def _check(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
    dtype: torch.dtype,
) -> _Sizes:
    """dtype: of the convolution's inputs. Raises ShapeError that names what does not fit."""
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
    if N % CONVOLVE_ROWS and N not in (1, 2):
        raise ShapeError(f"qkv holds {N} rows; the kernels take 1, 2 or multiples of 4: pad it.")
    if a.stride() != b.stride() or qkv.stride(-1) != 1 or a.stride(-1) != 1:
        raise ShapeError("qkv, a and b must be contiguous along a row, a and b laid out alike.")
    if not weights.conv.is_contiguous():
        raise ShapeError("weights_conv must be contiguous.")
    if state.conv.dtype != dtype:
        raise ShapeError(f"state_conv must be {dtype} as its inputs are, got {state.conv.dtype}.")
    _check_records(records, dtype)
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
