# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rotary position embedding, half-split: dimension j turns with dimension j + R/2."""

import torch
from torch import Tensor


def rotary_table(dims: int, theta: float, positions: int, device: torch.device) -> Tensor:
    """Cosines and sines of every position: [positions, 2, dims / 2] float32."""
    power = torch.arange(0, dims, 2, dtype=torch.float32, device=device) / dims
    # the order of Transformers: far positions are sensitive to how the frequency was rounded
    turns = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * (
        1 / theta**power
    )
    return torch.stack((turns.cos(), turns.sin()), dim=1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the first R of the last dimension by each row's position; the rest passes through.

    x     [N, H, D]      float
    table [N, 2, R/2]    float; the rows of `rotary_table` at the positions of x
    """
    half = table.shape[-1]
    cos, sin = table[:, None, 0], table[:, None, 1]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)
