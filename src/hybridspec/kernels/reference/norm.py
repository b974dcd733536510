# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Root-mean-square norms.

Two kinds live in one model: adding 1 to the weight of the wrong one, or twice, is a known fault.
"""

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


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x [..., K] divided by the root of its sum of squares (sum, not mean)."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
