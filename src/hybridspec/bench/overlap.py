# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Steered overlap: which experts a position has, by layer and absolute position alone.

Random weights route as no trained model does, and the distinct experts of a block are the price of
its rows. So a table prescribes them, and plain and drafted runs agree whatever their drafts were.
Persistence p is the chance that a position keeps an expert of the position before it. Measured
models lie anywhere in 0 to 0.6; 0.38 is reported for neighbours in a production model.
"""

import torch
from torch import Tensor


def steered_experts(
    layers: int, positions: int, *, experts: int, top: int, persistence: float, seed: int = 2
) -> Tensor:
    """[layers, positions, top] int32, distinct in a row. Needs experts >= 2 top.

    Each expert of a position is kept from the one before with chance `persistence`. What replaces
    the others is none of the position before, so that the share kept is the persistence itself.
    """
    assert experts >= 2 * top, "a position may share no expert with the one before"
    generator = torch.Generator().manual_seed(seed)
    table = torch.empty(positions, layers, top, dtype=torch.int64)
    current = torch.rand(layers, experts, generator=generator).topk(top).indices
    for row in table:
        row.copy_(current)
        lots = torch.rand(layers, experts, generator=generator).scatter_(1, current, -1.0)
        is_kept = torch.rand(layers, top, generator=generator) < persistence
        current = torch.where(is_kept, current, lots.topk(top).indices)
    return table.transpose(0, 1).to(torch.int32).contiguous()
