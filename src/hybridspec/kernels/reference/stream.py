# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The residual stream between the launches of a round.

A norm needs whole rows, a launch that adds to the stream holds some of their columns. So it leaves
each row times the weight of the norm that reads it next, and partial sums of squares; the reader
divides what it finds by the root of their mean. A norm then costs no launch of its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS

TILE = 16
"""columns of a partial sum"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Rows of the residual stream, written in place; stale from the count of rows on."""

    residual: Tensor
    """[MAX_ROWS, D] float32"""
    scaled: Tensor
    """[MAX_ROWS, D] float: the residual stream times the next norm's weight"""
    squares: Tensor
    """[MAX_ROWS, D / TILE] float32: sums of squares of TILE columns each"""

    @classmethod
    def empty(cls, D: int, *, dtype: torch.dtype, device: torch.device | str) -> "Stream":
        """D: a multiple of TILE."""
        return cls(
            residual=torch.empty(MAX_ROWS, D, dtype=torch.float32, device=device),
            scaled=torch.empty(MAX_ROWS, D, dtype=dtype, device=device),
            squares=torch.empty(MAX_ROWS, D // TILE, dtype=torch.float32, device=device),
        )


def write(stream: Stream, h: Tensor, norm: Tensor) -> None:
    """Set the first rows of the stream. h [n, D] float32; norm [D]: weight of the next norm."""
    n, D = h.shape
    stream.residual[:n] = h
    stream.scaled[:n] = (h * norm).to(stream.scaled.dtype)
    stream.squares[:n] = h.square().view(n, D // TILE, TILE).sum(-1)


def normed(stream: Stream, rows: Tensor, eps: float) -> Tensor:
    """What the next norm would give: [n, D] in the dtype of the residual stream."""
    n, D = int(rows), stream.residual.shape[1]
    scale = torch.rsqrt(stream.squares[:n].sum(1) / D + eps)
    return stream.scaled[:n].to(stream.residual.dtype) * scale[:, None]


def enter(tokens: Tensor, rows: Tensor, embedding: Tensor, norm: Tensor, stream: Stream) -> None:
    """Begin a pass: the stream is the tokens' embeddings.

    tokens [MAX_ROWS] int64, stale from `rows` [] int32 on; embedding [V, D]; norm [D]
    """
    write(stream, embedding[tokens[: int(rows)]].to(stream.residual.dtype), norm)
