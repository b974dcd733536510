# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Root-mean-square norms.

Two kinds live in one model: adding 1 to the weight of the wrong one, or twice, is a known fault.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.kernels.reference.activation import silu


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm over the last dimension, times `weight`.

    x      [..., D]   float
    weight [D]        float; a zero-centred weight has had its 1 added when it was loaded
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def gated_rms_norm(y: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm of each GDN value head, then the gate: the norm comes before silu(z).

    y, z   [N, HV, V]   float
    weight [V]          float; plain, starts at 1
    """
    return rms_norm(y, weight, eps) * silu(z)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGate:
    """What gates the heads of a GDN layer, and where the sums of their squares go."""

    z: Tensor
    """[N, HV, V] float"""
    weight: Tensor
    """[V]: of the heads' norm"""
    squares: Tensor
    """[N, HV, groups] float32, written: of the heads before the gate, V / groups columns each"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Gated heads of a GDN layer whose norm still has to scale them."""

    rows: Tensor
    """[N, HV, V] float: y weight silu(z)"""
    squares: Tensor
    """[N, HV, groups] float32: sums of squares of y"""


def gate_heads(y: Tensor, gate: HeadGate, rows: Tensor) -> Tensor:
    """The first `rows` rows of y [N, HV, V] times weight and silu(z); their squares are kept.

    rows [] int32, 0..N
    """
    n, groups = int(rows), gate.squares.shape[-1]
    gate.squares[:n] = y[:n].square().unflatten(-1, (groups, -1)).sum(-1)
    return y * gate.weight * silu(gate.z)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x [..., K] divided by the root of its sum of squares (sum, not mean)."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
