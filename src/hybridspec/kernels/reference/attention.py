# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Attention of a few rows over a paged cache.

A page holds PAGE positions of every head and starts at a multiple of PAGE, so the cache is split by
absolute position: what a row sums, and in which order, depends on its position alone, never on the
block that it came in.
"""

import torch
from torch import Tensor

PAGE = 128
"""positions of a page"""


def write_pages(pages: Tensor, x: Tensor, start: Tensor, rows: Tensor) -> None:
    """Store the first `rows` rows at positions start, start + 1, ...

    pages [P, HKV, PAGE, D]   float, in place
    x     [N, HKV, D]         float
    start []                  int32
    rows  []                  int32, 1..N
    """
    first, count = int(start), int(rows)
    positions = torch.arange(first, first + count, device=x.device)
    pages[positions // PAGE, :, positions % PAGE] = x[:count]


def attend(q: Tensor, keys: Tensor, values: Tensor, start: Tensor) -> Tensor:
    """Causal attention of rows at positions start, start + 1, ... with their keys in the cache.

    q            [N, H, D]              float
    keys, values [P, HKV, PAGE, D]      float; positions after a row's own are stale, but finite
    start        []                     int32
    returns      [N, H, D]
    """
    N, H, D = q.shape
    HKV = keys.shape[1]
    G = H // HKV
    first = int(start)
    used = (first + N + PAGE - 1) // PAGE
    keys, values = keys[:used], values[:used]
    # [HKV, N * G, D]: the rows of all query heads that share a key head stand together
    grouped = (q * D**-0.5).view(N, HKV, G, D).transpose(0, 1).reshape(HKV, N * G, D)
    scores = torch.matmul(grouped, keys.transpose(-1, -2)).view(used, HKV, N, G, PAGE)
    positions = torch.arange(used * PAGE, device=q.device).view(used, 1, 1, 1, PAGE)
    own = torch.arange(first, first + N, device=q.device).view(1, 1, N, 1, 1)
    scores = scores.masked_fill(positions > own, -torch.inf)
    shares = (scores - scores.amax(dim=(0, 4), keepdim=True)).exp()
    parts = torch.matmul(shares.view(used, HKV, N * G, PAGE), values).view(used, HKV, N, G, D)
    sums = shares.sum(-1)
    total, mass = parts[0], sums[0]
    for page in range(1, used):  # in page order: pages after a row's own add exact zeros
        total, mass = total + parts[page], mass + sums[page]
    return (total / mass.unsqueeze(-1)).transpose(0, 1).reshape(N, H, D)
