# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Steered overlap: which experts a position has, by layer and absolute position alone.

Random weights route as no trained model does, and the distinct experts of a block are the price of
its rows. So a table prescribes them, and plain and drafted runs agree whatever their drafts were.
Persistence p is the chance that a position keeps an expert of the position before it. Measured
models lie anywhere in 0 to 0.6; 0.38 is reported for neighbours in a production model.

How many experts are new is binomial in each layer, and may be one token's affair: with a
correlation r, what is new at the first router tells, by r, how much is new at the others together.
At a persistence of 0 or 1 every token is alike, and nothing is told.
"""

import math

import torch
from torch import Tensor


def steered_experts(
    layers: int,
    positions: int,
    *,
    experts: int,
    top: int,
    persistence: float,
    correlation: float = 0.0,
    seed: int = 2,
) -> Tensor:
    """[layers, positions, top] int32, distinct in a row. Needs experts >= 2 top.

    What replaces the experts that are not kept is none of the position before, so that the share
    kept is the persistence itself. correlation: 0..1
    """
    assert experts >= 2 * top, "a position may share no expert with the one before"
    generator = torch.Generator().manual_seed(seed)
    kept = _kept(layers, positions, top, persistence, correlation, generator)
    table = torch.empty(positions, layers, top, dtype=torch.int64)
    current = torch.rand(layers, experts, generator=generator).topk(top).indices
    for row, count in zip(table, kept, strict=True):
        row.copy_(current)
        lots = torch.rand(layers, experts, generator=generator).scatter_(1, current, -1.0)
        order = torch.rand(layers, top, generator=generator).argsort(1).argsort(1)
        current = torch.where(order < count[:, None], current, lots.topk(top).indices)
    return table.transpose(0, 1).to(torch.int32).contiguous()


def _kept(
    layers: int,
    positions: int,
    top: int,
    persistence: float,
    correlation: float,
    generator: torch.Generator,
) -> Tensor:
    """How many experts each position hands on, [positions, layers] int64.

    Quantiles of a binomial at a normal of the token and one of the layer. Over many layers the
    layers' own cancel, and the first layer's correlation with the rest is the token's weight.
    """
    of_token = torch.randn(positions, 1, generator=generator, dtype=torch.float64)
    of_layer = torch.randn(positions, layers, generator=generator, dtype=torch.float64)
    mixed = correlation * of_token + math.sqrt(1 - correlation**2) * of_layer
    chances = [
        math.comb(top, k) * persistence**k * (1 - persistence) ** (top - k) for k in range(top)
    ]
    limits = torch.tensor(chances, dtype=torch.float64).cumsum(0)
    return torch.searchsorted(limits, 0.5 * (1 + torch.erf(mixed / math.sqrt(2))))


def novelty_correlation(table: Tensor) -> float:
    """Of the number of new experts at the first layer with that at all others; table as above."""
    now, before = table[:, 1:, :, None], table[:, :-1, None, :]
    new = (~(now == before).any(-1)).sum(-1).double()
    pair = torch.stack((new[0], new[1:].sum(0)))
    return float(torch.corrcoef(pair)[0, 1])
