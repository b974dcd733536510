# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Attention of a few rows over a paged cache.

A page holds PAGE positions of every head and starts at a multiple of PAGE, so the cache is split by
absolute position: what a row sums, and in which order, depends on its position alone, never on the
block that it came in.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.kernels.reference.activation import sigmoid
from hybridspec.kernels.reference.norm import rms_norm
from hybridspec.kernels.reference.rotary import rotate

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


def attend_gated(
    projected: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    eps: float,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    rows: Tensor,
) -> Tensor:
    """The target's attention between its two projections; rows stand at length, length + 1, ...

    Writes the keys and values of the first `rows` rows, and looks at no later row.

    projected      [N, 2 H D + 2 HKV D]  float; of each head query then gate; keys; values
    q_norm, k_norm [D]                   float; their 1 added
    rotary         [positions, 2, R/2]   float32; the first R of a head's D turn
    keys, values   [P, HKV, PAGE, D]     float, in place; stale from `length` on
    length         []                    int32: positions that are committed
    rows           []                    int32, 1..N
    returns        [N, H D]              of which the first `rows` rows count
    """
    N, HKV, D = len(projected), keys.shape[1], keys.shape[-1]
    angles = _angles(rotary, length, N)
    queries = projected.shape[-1] - 2 * HKV * D
    heads, k, v = _live(projected, rows).split((queries, HKV * D, HKV * D), dim=1)
    q, gate = heads.reshape(N, -1, 2 * D).split(D, dim=-1)
    q = rotate(rms_norm(q, q_norm, eps), angles)
    k = rotate(rms_norm(k.reshape(N, HKV, D), k_norm, eps), angles)
    write_pages(keys, k.to(keys.dtype), length, rows)
    write_pages(values, v.reshape(N, HKV, D), length, rows)
    seen = attend(q.to(keys.dtype), keys, values, length) * sigmoid(gate)
    return seen.reshape(N, -1)


def attend_block(
    projected: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    eps: float,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    rows: Tensor,
    *,
    window: int | None,
    is_causal: bool,
) -> Tensor:
    """The drafter's attention between its projections, for a block at start, start + 1, ...

    A row at q sees key k of the positions before start + rows iff |q - k| < window, and k <= q
    where is_causal; with neither it sees all. Writes the block's keys and values.

    projected      [N, H D + 2 HKV D]  float; queries; keys; values
    start          []                  int32: position of the first row
    rows           []                  int32, 1..N: rows of the block
    returns        [N, H D]            of which the first `rows` rows count
    others as in attend_gated
    """
    n, HKV, D = int(rows), keys.shape[1], keys.shape[-1]
    first, end = int(start), int(start) + n
    angles = _angles(rotary, start, n)
    queries = projected.shape[-1] - 2 * HKV * D
    q, k, v = projected[:n].split((queries, HKV * D, HKV * D), dim=1)
    q = rotate(rms_norm(q.reshape(n, -1, D), q_norm, eps), angles)
    k = rotate(rms_norm(k.reshape(n, HKV, D), k_norm, eps), angles)
    write_pages(keys, k.to(keys.dtype), start, rows)
    write_pages(values, v.reshape(n, HKV, D), start, rows)
    seen_k, seen_v = (x.transpose(0, 1).flatten(1, 2)[:, :end] for x in (keys, values))
    distance = torch.arange(first, end, device=q.device)[:, None]
    distance = distance - torch.arange(end, device=q.device)
    mask = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        mask = mask & (distance.abs() < window)
    seen = F.scaled_dot_product_attention(
        q.to(keys.dtype).transpose(0, 1)[None],
        seen_k[None],
        seen_v[None],
        attn_mask=mask,
        enable_gqa=True,
    )[0]
    out = projected.new_zeros(len(projected), queries)
    out[:n] = seen.transpose(0, 1).reshape(n, queries)
    return out


def write_context(
    projected: Tensor,
    k_norm: Tensor,
    eps: float,
    rotary: Tensor,
    keys: Tensor,
    values: Tensor,
    start: Tensor,
    rows: Tensor,
) -> None:
    """Keys and values of context rows at start, start + 1, ... of all layers of a drafter.

    projected    [N, L, 2 HKV D]       float; of each layer keys, then values
    k_norm       [L, D]                float
    rotary       [positions, 2, D/2]   float32
    keys, values [L, P, HKV, PAGE, D]  float, in place
    start        []                    int32
    rows         []                    int32, 0..N
    """
    N, HKV, D = len(projected), keys.shape[2], keys.shape[-1]
    angles = _angles(rotary, start, N)
    for number, layer in enumerate(_live(projected, rows).unbind(1)):
        k, v = layer.reshape(N, 2, HKV, D).unbind(1)
        k = rotate(rms_norm(k, k_norm[number], eps), angles)
        write_pages(keys[number], k.to(keys.dtype), start, rows)
        write_pages(values[number], v, start, rows)


def _angles(rotary: Tensor, start: Tensor, rows: int) -> Tensor:
    return rotary[int(start) : int(start) + rows]


def _live(x: Tensor, rows: Tensor) -> Tensor:
    """x with zeros in every row from `rows` on."""
    live = torch.arange(len(x), device=x.device) < int(rows)
    return x.where(live.view(-1, *[1] * (x.dim() - 1)), 0)
