# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Which experts a row goes to: softmax over all, the k best, and the share of each.

The families differ in the shares: most let them sum to 1 again, some keep the probabilities
(`norm_topk_prob` false).
"""

import torch
from torch import Tensor


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most likely experts of each row; of equals the lowest index.

    logits  [N, E]   float32
    ids     [N, k]   int64, best first
    weights [N, k]   float32, each row sums to 1
    """
    ids, shares = route_by_probability(logits, k)
    return ids, shares / shares.sum(-1, keepdim=True)


def route_by_probability(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The same with weights as softmax gives them: each row sums to less than 1 unless k is E."""
    shares, ids = torch.sort(logits.softmax(-1), dim=-1, descending=True, stable=True)
    return ids[:, :k], shares[:, :k]


def drop_rows(ids: Tensor, rows: Tensor) -> Tensor:
    """ids [N, k] with -1 in every row from `rows` [] on: what is dropped fetches no expert."""
    kept = torch.arange(ids.shape[0], device=ids.device) < rows
    return torch.where(kept[:, None], ids, -1)
