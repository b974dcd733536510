# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Greedy acceptance: the longest prefix of the drafts that the target would have written itself."""

import torch
from torch import Tensor


def accept_greedy(
    block: Tensor, target: Tensor, rows: Tensor, stop_ids: Tensor, budget: Tensor
) -> tuple[Tensor, Tensor]:
    """Drafts accepted, cut at the first stop id and at the budget.

    What the round emits is target[:accepted + 1]: an accepted draft is the target's own token.

    block    [B]   int64   anchor, then drafts
    target   [N]   int64   arg-max of the target after each row; stale beyond rows
    rows     []    int32   rows that the target read, anchor included, 1..N
    stop_ids [K]   int64   tokens that end the text
    budget   []    int32   tokens that may still be emitted, at least 1
    accepted []    int32   0..rows-1
    is_done  []    bool    the last emitted token is a stop id, or the budget is used up
    """
    drafts = int(rows) - 1
    agrees = block[1 : drafts + 1] == target[:drafts]
    accepted = agrees.long().cumprod(0).sum()
    is_stop = torch.isin(target[: drafts + 1], stop_ids)
    first_stop = (~is_stop).long().cumprod(0).sum()  # drafts + 1 if there is none
    accepted = torch.minimum(torch.minimum(accepted, first_stop), budget.long() - 1)
    is_done = is_stop[accepted] | (accepted + 1 >= budget)
    return accepted.to(torch.int32), is_done
