# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""One round of one request: from the anchor to the committed state.

Two straight lines, with and without drafts. Nothing in here waits for a user, looks at a clock or
asks the device for a number: counts are tensors, and what the host wants to know of a round is in
the ledger's ring.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hybridspec import kernels
from hybridspec.core.records import Block, Reading, Routed
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.models.state import TargetState
from hybridspec.policy.policy import Policy

SLOTS = 8
"""rounds that may be enqueued before the first of them is drained"""


class Reader(Protocol):
    """What a round needs of a target: models.target.Target, or models.fused.FusedTarget."""

    @property
    def head(self) -> Tensor:
        """[V, D]: where it is, all else is."""
        ...

    @property
    def fetched(self) -> Tensor | None:
        """[routers] int32: distinct experts of each that the last pass read; None: not counted."""
        ...

    def empty_state(self, positions: int) -> TargetState:
        """A state that has read nothing."""
        ...

    def read_prompt(self, tokens: Tensor, state: TargetState) -> Reading:
        """Read tokens that are certain; the state moves past them."""
        ...

    def read_to_router(self, tokens: Tensor, rows: Tensor, state: TargetState) -> Routed:
        """Read the first `rows` tokens of a block up to the first router."""
        ...

    def read_on(self, routed: Routed, rows: Tensor, state: TargetState) -> Reading:
        """Read the first `rows` of them to the end."""
        ...


class Proposer(Protocol):
    """What a round needs of a drafter."""

    def empty_state(self, positions: int) -> Any:
        """A state that knows no context."""
        ...

    def take(self, taps: Tensor, state: Any, rows: Tensor | None = None) -> None:
        """Keep the first `rows` tap rows, those of newly committed positions; None: all."""
        ...

    def inject(self, state: Any) -> None:
        """Turn the tap rows that were kept into context."""
        ...

    def propose(self, anchor: Tensor, state: Any) -> Block:
        """The anchor and the guesses after it."""
        ...


@dataclass(slots=True, kw_only=True)
class Request:
    """What one request carries from round to round."""

    target: TargetState
    draft: Any
    stop_ids: Tensor
    """[K] int64"""
    ledger: Ledger
    """its length is the target state's, the same tensor"""
    one: Tensor
    """[] int32: 1, the rows of a plain round"""
    positions: int
    """tokens that its states have room for"""

    def __post_init__(self) -> None:
        assert self.ledger.length is self.target.length, "one length, not two"

    @classmethod
    def empty(
        cls,
        target: Reader,
        drafter: Proposer | None,
        *,
        stop_ids: tuple[int, ...],
        positions: int,
    ) -> "Request":
        """Room for a prompt and what is to come; the ledger is opened once the prompt is read."""
        state = target.empty_state(positions)
        device = state.length.device
        return cls(
            target=state,
            draft=None if drafter is None else drafter.empty_state(positions),
            stop_ids=torch.tensor(stop_ids, dtype=torch.int64, device=device),
            ledger=Ledger.closed(length=state.length, slots=SLOTS),
            one=torch.ones((), dtype=torch.int32, device=device),
            positions=positions,
        )

    def reset(self) -> None:
        """Forget the text, in place."""
        self.target.reset()
        if self.draft is not None:
            self.draft.reset()


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The rounds of one request."""

    target: Reader
    drafter: Proposer | None
    policy: Policy
    request: Request

    def reset(self) -> None:
        """Another text begins. What the policy knows of the pair it keeps."""
        self.request.reset()
        self.policy.reset()

    def drafted_round(self) -> None:
        """Draft, choose, read to the first router, correct, read on, settle, commit, learn."""
        request, policy, state = self.request, self.policy, self.request.target
        assert self.drafter is not None
        assert request.draft is not None
        policy.begin()
        block = self.drafter.propose(request.ledger.anchor, request.draft)  # all guesses at once
        chosen, shown = policy.choose(block, request.ledger)  # rows worth their time, and one more:
        routed = self.target.read_to_router(block.tokens, shown, state)  # cheap, no expert has run
        rows = policy.correct(routed, chosen, shown)  # does that one earn its experts?
        reading = self.target.read_on(routed, rows, state)  # the expensive part, kept rows only
        self._settle(block.tokens, reading, rows)  # the prefix that the target agrees with
        self._commit(reading)  # every state, up to that prefix
        policy.learn(block, chosen, rows, request.ledger)  # all that the round teaches

    def plain_round(self) -> None:
        """Plain decoding: one row, no draft. A drafter still gets its taps and can resume."""
        block, rows = self.request.ledger.anchor.view(1), self.request.one
        routed = self.target.read_to_router(block, rows, self.request.target)
        reading = self.target.read_on(routed, rows, self.request.target)
        self._settle(block, reading, rows)
        self._commit(reading)

    def _settle(self, block: Tensor, reading: Reading, rows: Tensor) -> None:
        """Accept, and write the ledger; the length in it is the state's, so that moves here."""
        request = self.request
        settle = kernels.of(block.device).settle
        settle(block, reading.tokens, rows, request.stop_ids, request.ledger)

    def _commit(self, reading: Reading) -> None:
        """The anchor and the accepted drafts; nothing in a round after the end."""
        request, committed = self.request, self.request.ledger.committed
        request.target.commit(committed)
        if self.drafter is not None and request.draft is not None:
            self.drafter.take(reading.taps, request.draft, committed)
