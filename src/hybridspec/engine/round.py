# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""One round of one request: from the anchor to the committed state.

Two straight lines, with and without drafts. Nothing in here waits for a user or looks at a clock;
every line is a room.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hybridspec.core.records import Block, Reading, Verdict
from hybridspec.kernels.reference.accept import accept_greedy
from hybridspec.models.dflash import DraftState
from hybridspec.models.state import TargetState
from hybridspec.models.target import Target
from hybridspec.policy.policy import Policy


class Proposer(Protocol):
    """What a round needs of a drafter."""

    def empty_state(self, positions: int) -> DraftState:
        """A state that knows no context."""
        ...

    def take(self, taps: Tensor, state: DraftState) -> None:
        """Keep the tap rows of newly committed positions."""
        ...

    def propose(self, anchor: Tensor, state: DraftState) -> Block:
        """The anchor and the guesses after it."""
        ...


@dataclass(slots=True, kw_only=True)
class Request:
    """What one request carries from round to round."""

    target: TargetState
    draft: DraftState | None
    anchor: Tensor
    """[] int64: the last emitted token, which the target has not read yet"""
    stop_ids: Tensor
    """[K] int64"""
    budget: Tensor
    """[] int32: tokens that may still be emitted"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a round did, on the device."""

    tokens: Tensor
    """[accepted + 1] int64: what the round emits"""
    rows: Tensor
    """[] int32: rows that the target read to the end"""
    verdict: Verdict


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The rounds of one request."""

    target: Target
    drafter: Proposer | None
    policy: Policy
    request: Request

    def drafted_round(self) -> Outcome:
        """Draft, choose, read to the first router, correct, read on, accept, commit."""
        request, policy, state = self.request, self.policy, self.request.target
        assert self.drafter is not None
        assert request.draft is not None
        block = self.drafter.propose(request.anchor, request.draft)  # all guesses in one pass
        survival = self._within_budget(policy.survival(block))  # how likely each guess is to count
        wanted = policy.choose(survival, int(state.length))  # rows that are worth their time
        shown = policy.look_ahead(wanted)  # one more is cheap: no expert has run yet
        routed = self.target.read_to_router(block.tokens, shown, state)
        rows = policy.correct(routed, survival, wanted, shown)  # does it earn its experts?
        reading = self.target.read_on(routed, rows, state)  # the expensive part, kept rows only
        outcome = self._judge(block.tokens, reading, rows)  # the prefix that the target agrees with
        self._commit(outcome, reading)  # every state, up to that prefix
        policy.learn(rows, outcome.verdict)
        return outcome

    def plain_round(self) -> Outcome:
        """Plain decoding: one row, no draft. A drafter still gets its taps and can resume."""
        block = self.request.anchor.view(1)
        rows = torch.ones((), dtype=torch.int32, device=block.device)
        routed = self.target.read_to_router(block, rows, self.request.target)
        reading = self.target.read_on(routed, rows, self.request.target)
        outcome = self._judge(block, reading, rows)
        self._commit(outcome, reading)
        self.policy.rest(int(self.request.target.length))
        return outcome

    def _within_budget(self, survival: Tensor) -> Tensor:
        """A draft beyond the last token that may be emitted counts for nothing."""
        place = torch.arange(1, len(survival) + 1, device=survival.device)
        return torch.where(place < self.request.budget, survival, 0.0)

    def _judge(self, block: Tensor, reading: Reading, rows: Tensor) -> Outcome:
        request = self.request
        accepted, is_done = accept_greedy(
            block, reading.tokens, rows, request.stop_ids, request.budget
        )
        return Outcome(
            tokens=reading.tokens[: int(accepted) + 1],
            rows=rows,
            verdict=Verdict(accepted=accepted, is_done=is_done),
        )

    def _commit(self, outcome: Outcome, reading: Reading) -> None:
        request = self.request
        committed = outcome.verdict.accepted + 1  # the anchor and the accepted drafts
        request.target.commit(committed)
        if self.drafter is not None and request.draft is not None:
            self.drafter.take(reading.taps[: int(committed)], request.draft)
        request.anchor = outcome.tokens[-1]
        request.budget -= committed
