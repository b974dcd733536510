# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rows that are read to be learnt from: a few beyond n*, bought from a purse, or the whole block.

What a reader gets wrong: only what the purse pays for is exploration's own time. Whole blocks are
read because the choice is not to be trusted, and the rounds of a trial because `policy/drafting.py`
asks whether drafts pay; with n* = 1 they would show it nothing.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

EXPLORED_ROWS = 2
"""rows beyond n* that are read to be learnt from"""
LEAST_COST = 0.01
"""what these cost at least, in rounds of n* rows: where seconds are flat, no row is free"""
TRIAL = 4
"""drafted rounds after plain ones that explore"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What labels may cost, on the device; rounds write it in place."""

    whole: Tensor
    """[] int32: 1 while whole blocks are to be read"""
    purse: Tensor
    """[] float32: seconds that exploration may spend"""
    spent: Tensor
    """[] float32: seconds that it spent"""
    explored: Tensor
    """[] int32: rounds that it lengthened"""
    reached: Tensor
    """[] int32: committed positions behind a text's last drafted round; -1 before its first"""
    trial: Tensor
    """[] int32: rounds of a text to come that explore, since plain ones lay before them"""
    asked: Tensor
    """[] int32: 1 if the rows of a text's round are read for their labels: no correction takes
    them back"""

    @classmethod
    def empty(cls, device: torch.device | str) -> "Exploration":
        """Nothing in the purse."""

        def count(value: int = 0) -> Tensor:
            return torch.tensor(value, dtype=torch.int32, device=device)

        def seconds() -> Tensor:
            return torch.zeros((), dtype=torch.float32, device=device)

        return cls(
            whole=count(),
            purse=seconds(),
            spent=seconds(),
            explored=count(),
            reached=count(-1),
            trial=count(),
            asked=count(),
        )

    def of_text(self) -> "Exploration":
        """The same purse for a text of its own."""
        return replace(
            self,
            reached=torch.full_like(self.reached, -1),
            trial=torch.zeros_like(self.trial),
            asked=torch.zeros_like(self.asked),
        )


def explore(
    rows: Tensor, costs: Tensor, exploration: Exploration, length: Tensor, budget: Tensor
) -> Tensor:
    """Rows that also bring labels: n*, EXPLORED_ROWS more, or the whole block; [] int32.

    More are read where the purse holds what they cost, which is then spent; in a trial anyhow.
    Never more than the budget, since none beyond it has a label.

    rows   [] int32         n*, 1..BLOCK
    costs  [BLOCK] float32  seconds of 1, 2, ... rows
    length [] int32         committed positions: where other than drafted rounds moved it, a trial
                            begins
    budget [] int32         tokens that may still be emitted, at least 1
    """
    n, most = int(rows), min(len(costs), int(budget))
    wide = max(n, min(n + EXPLORED_ROWS, most))
    if int(exploration.reached) not in (-1, int(length)):
        exploration.trial.fill_(TRIAL)
    whole = int(exploration.whole)
    if whole:
        wide = max(n, most)
    elif not int(exploration.trial):
        cost = torch.maximum(costs[wide - 1] - costs[n - 1], LEAST_COST * costs[n - 1])
        if wide > n and bool(cost <= exploration.purse):
            exploration.purse.sub_(cost)
            exploration.spent.add_(cost)
            exploration.explored.add_(1)
        else:
            wide = n
    exploration.asked.fill_(int(wide > n or whole))
    return torch.full_like(rows, wide)
