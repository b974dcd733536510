# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Greedy acceptance: the longest prefix of the drafts that the target would have written itself."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS

ACCEPTED, ROWS, DONE, ROUND = range(MAX_ROWS, MAX_ROWS + 4)
"""columns of a ring's slot behind the tokens"""
RING_WIDTH = MAX_ROWS + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What one request carries from round to round on the device; `settle` writes it in place."""

    anchor: Tensor
    """[] int64: the last emitted token, which the target has not read yet"""
    budget: Tensor
    """[] int32: tokens that may still be emitted"""
    length: Tensor
    """[] int32: committed positions"""
    committed: Tensor
    """[] int32: rows that the last round commits, 0 if it came after the end"""
    is_done: Tensor
    """[] bool: the text has ended"""
    rounds: Tensor
    """[] int32: rounds so far, those after the end included"""
    settled: Tensor
    """[] int64: nanoseconds of the device's clock when the last round had read its rows"""
    ring: Tensor
    """[SLOTS, RING_WIDTH] int64: of round i, in slot i % SLOTS, the tokens it emitted (-1 behind
    them), then ACCEPTED (-1: it came after the end and emitted none), ROWS read, DONE, ROUND (i)"""

    @classmethod
    def closed(cls, *, length: Tensor, slots: int) -> "Ledger":
        """Of no text yet. length [] int32 is kept: who else holds it sees it move."""
        device = length.device

        def zero(dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros((), dtype=dtype, device=device)

        return cls(
            anchor=zero(torch.int64),
            budget=zero(),
            length=length,
            committed=zero(),
            is_done=torch.ones((), dtype=torch.bool, device=device),
            rounds=zero(),
            settled=zero(torch.int64),
            ring=torch.full((slots, RING_WIDTH), -1, dtype=torch.int64, device=device),
        )

    @classmethod
    def opened(cls, anchor: Tensor, *, length: Tensor, budget: int, slots: int) -> "Ledger":
        """Before the first round of a text."""
        ledger = cls.closed(length=length, slots=slots)
        ledger.open(anchor, budget)
        return ledger

    def open(self, anchor: Tensor, budget: int) -> None:
        """Before the first round of another text, in place; without a budget it has ended already.

        anchor [] int64: its last token so far. The length is left to the state that shares it.
        """
        self.anchor.copy_(anchor)
        self.budget.fill_(budget)
        self.committed.zero_()
        self.is_done.fill_(budget < 1)
        self.rounds.zero_()
        self.ring.fill_(-1)


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


def settle(block: Tensor, target: Tensor, rows: Tensor, stop_ids: Tensor, ledger: Ledger) -> None:
    """accept_greedy, and all that a captured round does with the verdict but the commit itself.

    block, target, rows and stop_ids as in accept_greedy. A round after the end, or of 0 rows,
    commits 0 rows, leaves anchor, budget, length and is_done as they are, and still takes its slot
    in the ring, so that the host finds one entry a round.
    """
    ledger.settled.fill_(time.perf_counter_ns())
    read, number, accepted = int(rows), int(ledger.rounds), -1
    if bool(ledger.is_done) or int(ledger.budget) < 1:
        read = 0
    if read > 0:
        verdict, is_done = accept_greedy(block, target, rows, stop_ids, ledger.budget)
        accepted = int(verdict)
        ledger.is_done.copy_(is_done)
        ledger.anchor.copy_(target[accepted])
    committed = accepted + 1
    ledger.committed.fill_(committed)
    ledger.budget.sub_(ledger.committed)
    ledger.length.add_(ledger.committed)
    ledger.rounds.add_(1)
    emitted = target[:committed].tolist() + [-1] * (MAX_ROWS - committed)
    slot = ledger.ring.new_tensor([*emitted, accepted, read, bool(ledger.is_done), number])
    ledger.ring[number % len(ledger.ring)] = slot
