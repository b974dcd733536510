# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Activations whose result does not depend on where in a tensor an element stands.

PyTorch's own sigmoid, silu and softplus use one formula in vector registers and another for the
elements left over at the end of a tensor or of a thread's share: one last place apart in up to 1 of
8 elements (x86-64, torch 2.13, November 2026). exp, log1p and division have one formula everywhere,
so these are built from them.
"""

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), any shape."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), any shape."""
    return x / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), any shape, without overflow."""
    return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))
