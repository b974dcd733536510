# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Products of the rows of a round with dense weights.

Rows of a result are undefined from `rows` on.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.activation import silu
from hybridspec.kernels.reference.gdn import Convolution, convolve
from hybridspec.kernels.reference.norm import Heads
from hybridspec.kernels.reference.stream import Stream, normed, write


def project(
    stream: Stream,
    weight: Tensor,
    rows: Tensor,
    eps: float,
    convolution: Convolution | None = None,
) -> Tensor:
    """The stream's norm times a weight.

    weight [M, D]   float, M a multiple of 16
    rows   []       int32, 1..MAX_ROWS
    returns [MAX_ROWS, M] in the weight's dtype; with a convolution its columns are undefined: they
    go to `inputs` and `mixed`
    """
    y = _padded(_times(normed(stream, rows, eps), weight), weight.dtype)
    if convolution is not None:
        of, n = convolution, int(rows)
        of.inputs[:n] = y[:n, : of.weight.shape[1]].to(of.inputs.dtype)
        of.mixed[:n] = convolve(of.inputs[:n], of.weight, of.past).to(of.mixed.dtype)
    return y


def project_gated(stream: Stream, weight: Tensor, rows: Tensor, eps: float) -> Tensor:
    """silu(gate) * up of the stream's norm.

    weight [2I, D]   float, gate rows first, 2I a multiple of 16
    rows   []        int32, 1..MAX_ROWS
    returns [MAX_ROWS, I] in the weight's dtype
    """
    gate, up = _times(normed(stream, rows, eps), weight).chunk(2, dim=1)
    return _padded(silu(gate) * up, weight.dtype)


def project_onto(
    x: Tensor,
    weight: Tensor,
    rows: Tensor,
    stream: Stream,
    norm: Tensor,
    taps: Tensor | None = None,
) -> None:
    """Add x weight^T to the stream.

    x      [MAX_ROWS, K]   float
    weight [D, K]          float
    rows   []              int32, 1..MAX_ROWS
    norm   [D]             float: weight of the norm that reads the stream next
    taps   [MAX_ROWS, D]   float, a column block of a wider tensor: the stream's new rows go there
    """
    n = int(rows)
    h = stream.residual[:n] + _times(x[:n], weight)
    write(stream, h, norm)
    if taps is not None:
        taps[:n] = h.to(taps.dtype)


def project_heads_onto(
    heads: Heads, weight: Tensor, rows: Tensor, eps: float, stream: Stream, norm: Tensor
) -> None:
    """Add what the gated norm of a GDN layer's heads gives, times a weight, to the stream.

    heads  [MAX_ROWS, HV, V]   float, and their squares
    weight [D, HV V]           float
    rows   []                  int32, 1..MAX_ROWS
    norm   [D]                 float: weight of the norm that reads the stream next
    """
    dtype = torch.promote_types(heads.rows.dtype, torch.float32)
    scale = torch.rsqrt(heads.squares.sum(-1) / heads.rows.shape[-1] + eps)[..., None]
    x = (heads.rows.to(dtype) * scale).flatten(1)
    project_onto(x, weight, rows, stream, norm)


def _times(x: Tensor, weight: Tensor) -> Tensor:
    """In the wider of float32 and the operands' dtype."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    return F.linear(x.to(dtype), weight.to(dtype))


def _padded(y: Tensor, dtype: torch.dtype) -> Tensor:
    return F.pad(y, (0, 0, 0, MAX_ROWS - len(y))).to(dtype)
