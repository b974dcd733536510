# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false
"""Gated RMS norm of the heads of a GDN layer as a launch, one program a row and head.

The engine has none: its verification gates the heads and the product behind it norms them
(kernels/reference/norm.py, HeadGate). The scope `whole+norm` of gdn_verify.py compares normed rows
of several sequences, as peers leave them, and so takes this. It moves y, the gate and the result
once: 6 bytes an element in bf16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.kernels.gdn.rows import sigmoid
from hybridspec.kernels.launch import ShapeError, overlaps


@triton.jit
def _gated_norm_kernel(
    y, gate, weight, out, eps, GATE_ROW, HEADS, V: tl.constexpr, OVERLAPS: tl.constexpr
):
    if OVERLAPS:
        gdc_launch_dependents()
    lane = tl.arange(0, V)
    i_row, i_head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    at = tl.program_id(0).to(tl.int64) * V + lane
    w = tl.load(weight + lane).to(tl.float32)
    if OVERLAPS:
        gdc_wait()
    x = tl.load(y + at).to(tl.float32)
    z = tl.load(gate + i_row.to(tl.int64) * GATE_ROW + i_head * V + lane).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / V + eps) * w
    tl.store(out + at, x * z * sigmoid(z))


def gated_rms_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Contract of kernels.reference.norm.gated_rms_norm, for y and z [..., HV, V] in one dtype.

    z may be columns of a wider matrix: its heads must follow each other, its rows need not.
    """
    V = y.shape[-1]
    if z.shape != y.shape or weight.shape != (V,):
        raise ShapeError(
            f"z {tuple(z.shape)} and weight {tuple(weight.shape)} must fit y {tuple(y.shape)}."
        )
    heads = y.shape[-2]
    z = z.reshape(-1, heads, V) if z.is_contiguous() else z
    if V & (V - 1) or not y.is_contiguous() or z.dim() != 3 or z.stride()[1:] != (V, 1):
        raise ShapeError(
            f"y must be contiguous and a power of two wide, z's heads as well, not {V} with "
            f"strides {y.stride()} and {z.stride()}."
        )
    out = torch.empty_like(y)
    overlapping = overlaps(y.device)
    _gated_norm_kernel[(y.numel() // V,)](
        y, z, weight, out, eps, z.stride(0), heads, V=V, OVERLAPS=overlapping,
        launch_pdl=overlapping, num_warps=1,
    )  # fmt: skip
    return out
