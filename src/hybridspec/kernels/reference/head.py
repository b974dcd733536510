# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""From the last hidden state to tokens. The lowest index wins every tie."""

import torch
from torch import Tensor
from torch.nn import functional as F

LOG_ODDS_LIMIT = 40.0
"""Log-odds beyond this say no more than certainty."""


def read_head(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The target's own next token after each row.

    x      [N, D]   float
    weight [V, D]   float
    tokens [N]      int64: arg-max of the logits
    gaps   [N]      float: distance of the two best logits
    """
    logits = F.linear(x, weight)
    best, tokens = logits.max(-1)
    second = logits.scatter(1, tokens[:, None], -torch.inf).amax(-1)
    return tokens, best - second


def draft_head(x: Tensor, weight: Tensor, mask_token_id: int) -> tuple[Tensor, Tensor]:
    """The drafter's guess in each row, and how sure it is of it.

    x        [N, D]   float
    weight   [V, D]   float, the target's
    tokens   [N]      int64: arg-max over all tokens but the mask, which is never drafted
    log_odds [N]      float: log(p / (1 - p)) of that token, clamped to +-40
    """
    logits = F.linear(x, weight)
    logits[:, mask_token_id] = -torch.inf
    best, tokens = logits.max(-1)
    rest = logits.scatter(1, tokens[:, None], -torch.inf).logsumexp(-1)
    return tokens, (best - rest).clamp(-LOG_ODDS_LIMIT, LOG_ODDS_LIMIT)


def read_head_scaled(
    x: Tensor, squares: Tensor, weight: Tensor, rows: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """read_head of a residual stream whose root mean square is still to be divided by.

    x       [MAX_ROWS, D]          float, of weight's dtype: stream times the final norm's weight
    squares [MAX_ROWS, D / TILE]   float32: parts of the sum of squares of the residual stream
    weight  [V, D]                 float
    rows    []                     int32: rows that count, 0..MAX_ROWS; stale beyond
    tokens  [MAX_ROWS]             int64: arg-max of the logits; without meaning beyond rows
    gaps    [MAX_ROWS]             float: distance of the two best logits
    """
    return read_head(_normed(x, squares, rows, eps), weight)


def draft_head_scaled(
    x: Tensor, squares: Tensor, weight: Tensor, rows: Tensor, mask_token_id: int, eps: float
) -> tuple[Tensor, Tensor]:
    """draft_head likewise: tokens [MAX_ROWS] int64, log_odds [MAX_ROWS] float, clamped to +-40."""
    return draft_head(_normed(x, squares, rows, eps), weight, mask_token_id)


def _normed(x: Tensor, squares: Tensor, rows: Tensor, eps: float) -> Tensor:
    counts = torch.arange(x.shape[0], device=x.device)[:, None] < rows
    scale = (squares.sum(1) / x.shape[1] + eps).rsqrt()[:, None]
    return torch.where(counts, x * scale, 0.0).to(x.dtype)
