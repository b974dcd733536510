# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The routed experts of a layer.

On a CPU several rows run best as two products over experts packed side by side, unchosen ones
weighted with zero (a loop over experts costs more than it saves while experts are small). What
costs is fetching weights, so the quick paths copy the chosen experts together first: one layer of
32 experts, 4 rows that chose 10: 326 us, all 32: 592 us (x86-64, November 2026).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.kernels.reference.activation import silu
from hybridspec.kernels.reference.router import Routing
from hybridspec.kernels.reference.stream import Stream, write


def experts(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Weighted sum of the chosen experts' outputs, down(silu(gate x) * (up x)).

    x       [N, D]        float
    ids     [N, k]        int64; -1 chooses nothing
    weights [N, k]        float
    gate_up [E, 2I, D]    float, gate rows first
    down    [D, E, I]     float: packed, the checkpoint's [E, D, I] with the experts moved inward
    returns [N, D]
    """
    E, double, D = gate_up.shape
    N = x.shape[0]
    shares = x.new_zeros(N, E + 1).scatter_(1, torch.where(ids < 0, E, ids), weights)[:, :E]
    gate, up = F.linear(x, gate_up.view(E * double, D)).view(N, E, 2, double // 2).unbind(2)
    hidden = silu(gate) * up * shares.unsqueeze(-1)
    return F.linear(hidden.flatten(1), down.flatten(1))


def experts_of_few_rows(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """The same for ids without -1, fetching the distinct chosen experts alone."""
    chosen, places = ids.unique(return_inverse=True)
    if 4 * len(chosen) > 3 * len(gate_up):  # then copying costs more than it saves
        return experts(x, ids, weights, gate_up, down)
    fetched = gate_up.index_select(0, chosen), down.index_select(1, chosen)
    return experts(x, places, weights, *fetched)


def experts_of_one_row(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """The same for N = 1 and ids without -1, reading the chosen experts alone."""
    chosen, D = ids[0], x.shape[1]
    # index_select: 16 us, indexing: 91 us at 4 of 32 experts [64, 256], x86-64, November 2026
    rows = gate_up.index_select(0, chosen).view(-1, D)
    gate, up = F.linear(x, rows).view(len(chosen), 2, -1).unbind(1)  # [k, I] each
    hidden = silu(gate) * up * weights[0, :, None]
    return F.linear(hidden.view(1, -1), down.index_select(1, chosen).view(D, -1))


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A dense expert: x [N, D], gate and up [I, D], down [D, I]."""
    return F.linear(silu(F.linear(x, gate)) * F.linear(x, up), down)


def experts_onto(
    stream: Stream,
    routing: Routing,
    gate_up: Tensor,
    down: Tensor,
    rows: Tensor,
    norm: Tensor,
    taps: Tensor | None = None,
) -> None:
    """Add the outputs of the listed experts, the shared one among them, to the stream.

    gate_up [E + pieces, 2I, D]  float, gate rows first; behind E the shared expert, in pieces of I
    down    [E + pieces, D, I]   float
    rows    []                   int32, 1..MAX_ROWS
    norm    [D]                  float: weight of the norm that reads the stream next
    taps    [MAX_ROWS, D]        float, a column block of a wider tensor: the new rows go there
    """
    n = int(rows)
    h = stream.residual[:n].clone()
    x = stream.scaled[:n].to(h.dtype) * routing.scale[:n, None]
    for expert in routing.chosen[: int(routing.count)].tolist():
        share = routing.shares[:n, expert]
        gate, up = F.linear(x, gate_up[expert].to(x.dtype)).chunk(2, dim=1)
        h += F.linear(share[:, None] * silu(gate) * up, down[expert].to(x.dtype))
    write(stream, h, norm)
    if taps is not None:
        taps[:n] = h.to(taps.dtype)
