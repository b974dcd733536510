# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Which experts a row goes to: softmax over all, the k best, shares that sum to 1."""

import torch
from torch import Tensor


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most likely experts of each row; of equals the lowest index.

    logits  [N, E]   float32
    ids     [N, k]   int64, best first
    weights [N, k]   float32, each row sums to 1
    """
    shares, ids = torch.sort(logits.softmax(-1), dim=-1, descending=True, stable=True)
    shares = shares[:, :k]
    return ids[:, :k], shares / shares.sum(-1, keepdim=True)


def drop_rows(ids: Tensor, rows: Tensor) -> Tensor:
    """ids [N, k] with -1 in every row from `rows` [] on: what is dropped fetches no expert."""
    kept = torch.arange(ids.shape[0], device=ids.device) < rows
    return torch.where(kept[:, None], ids, -1)


def new_experts(ids: Tensor, row: int) -> int:
    """d0: how many experts of `row` no earlier row chose. ids [N, k] int64, no -1 up to `row`."""
    return int((~torch.isin(ids[row], ids[:row])).sum())
