# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rotary position embedding, half-split: dimension j turns with dimension j + R/2.

YaRN (arXiv 2309.00071, section 3.4) slows the dimensions that turn too rarely to have been seen in
full; its scale is part of the table, so rows that were turned by it are longer by that factor.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """How YaRN stretches a rotary embedding; the fields are those of Transformers."""

    factor: float
    """how much longer the context is than the one trained for"""
    original_max_position_embeddings: int
    """positions trained for"""
    beta_fast: float = 32.0
    """dimensions that turn more often than this over the original positions stay as they are"""
    beta_slow: float = 1.0
    """dimensions that turn less often than this are slowed by the whole factor"""
    truncate: bool = True
    """whether the two bounds are widened to whole dimensions"""
    scale: float
    """factor on cosines and sines"""


def rotary_table(dims: int, theta: float, positions: int, device: torch.device) -> Tensor:
    """Cosines and sines of every position: [positions, 2, dims / 2] float32."""
    return _table(1 / _wavelengths(dims, theta, device), positions)


def yarn_table(
    dims: int, theta: float, positions: int, device: torch.device, *, yarn: Yarn
) -> Tensor:
    """Cosines and sines stretched by YaRN, times its scale: [positions, 2, dims / 2] float32.

    theta must be above 1. Equals `_compute_yarn_parameters` of Transformers to float rounding.
    """
    waves = _wavelengths(dims, theta, device)
    low, high = (
        dims
        * math.log(yarn.original_max_position_embeddings / (turns * 2 * math.pi))
        / (2 * math.log(theta))
        for turns in (yarn.beta_fast, yarn.beta_slow)
    )  # dimensions that turn so often over the original positions
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    width = high - low if high != low else 0.001
    slowed = ((torch.arange(dims // 2, dtype=torch.float32, device=device) - low) / width).clamp(
        0, 1
    )
    kept = 1 - slowed
    turns = 1 / (yarn.factor * waves) * (1 - kept) + 1 / waves * kept
    return _table(turns, positions) * yarn.scale


def _wavelengths(dims: int, theta: float, device: torch.device) -> Tensor:
    return theta ** (torch.arange(0, dims, 2, dtype=torch.float32, device=device) / dims)


def _table(turns: Tensor, positions: int) -> Tensor:
    # the order of Transformers: far positions are sensitive to how the frequency was rounded
    angles = torch.arange(positions, dtype=torch.float32, device=turns.device)[:, None] * turns
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the first R of the last dimension by each row's position; the rest passes through.

    x     [N, H, D]      float
    table [N, 2, R/2]    float; the rows of a table at the positions of x
    """
    half = table.shape[-1]
    cos, sin = table[:, None, 0], table[:, None, 1]
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)
