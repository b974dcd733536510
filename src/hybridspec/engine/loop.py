# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The host's part: feed the prompt, enqueue rounds, drain what they emit, and count.

`seconds` holds rounds alone: neither the prompt's pass, nor measuring, nor the time that a reader
of the stream takes.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from hybridspec.core.records import FinishReason, Stats
from hybridspec.engine.round import Outcome, Proposer, Request, Rounds
from hybridspec.models.state import TargetState
from hybridspec.models.target import PREFILL_ROWS, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What one round hands to the host."""

    token_ids: tuple[int, ...]
    drafts_accepted: int
    finish_reason: FinishReason | None


@dataclass(slots=True)
class Tally:
    """Counts of a request so far."""

    rounds: int = 0
    rounds_drafted: int = 0
    tokens: int = 0
    rows_read: int = 0
    drafts_accepted: int = 0
    lengths: Counter[int] = field(default_factory=Counter[int])
    seconds: float = 0.0

    def add(self, outcome: Outcome, seconds: float, *, is_drafted: bool) -> None:
        """Count one round."""
        rows, accepted = int(outcome.rows), int(outcome.verdict.accepted)
        self.rounds += 1
        self.rounds_drafted += is_drafted
        self.tokens += accepted + 1
        self.rows_read += rows
        self.drafts_accepted += accepted
        self.lengths[rows] += 1
        self.seconds += seconds

    def stats(self) -> Stats:
        """The statistics as they stand."""
        return Stats(
            rounds=self.rounds,
            rounds_drafted=self.rounds_drafted,
            tokens=self.tokens,
            rows_read=self.rows_read,
            drafts_accepted=self.drafts_accepted,
            lengths=dict(self.lengths),
            seconds=self.seconds,
        )


@torch.inference_mode()
def start(
    prompt_ids: list[int],
    *,
    target: Target,
    drafter: Proposer | None,
    stop_ids: tuple[int, ...],
    budget: int,
) -> Request:
    """Read the prompt. The anchor is then the first emitted token, paid for from the budget."""
    device = target.head.device
    state = TargetState.empty(target.config, len(prompt_ids) + budget, device)
    draft = drafter.empty_state(len(prompt_ids) + budget) if drafter else None
    prompt = torch.tensor(prompt_ids, dtype=torch.int64, device=device)
    reading = None
    for begin in range(0, len(prompt), PREFILL_ROWS):
        reading = target.read_prompt(prompt[begin : begin + PREFILL_ROWS], state)
        if drafter is not None and draft is not None:
            drafter.take(reading.taps, draft)
    assert reading is not None
    return Request(
        target=state,
        draft=draft,
        anchor=reading.tokens[-1],
        stop_ids=torch.tensor(stop_ids, dtype=torch.int64, device=device),
        budget=torch.tensor(budget - 1, dtype=torch.int32, device=device),
    )


@torch.inference_mode()
def decode(rounds: Rounds, tally: Tally) -> Iterator[Emission]:
    """Rounds until the text ends; the first emission is the prompt's own token and no round."""
    request = rounds.request
    first, left = int(request.anchor), int(request.budget)
    tally.tokens = 1
    is_stop = first in request.stop_ids.tolist()
    reason = "stop" if is_stop else "length" if not left else None
    yield Emission(token_ids=(first,), drafts_accepted=0, finish_reason=reason)
    while reason is None:
        begun = time.perf_counter()
        is_drafted = rounds.drafter is not None and rounds.policy.wants_drafts(
            int(request.target.length), int(request.budget)
        )
        outcome = rounds.drafted_round() if is_drafted else rounds.plain_round()
        tokens = tuple(int(i) for i in outcome.tokens)
        tally.add(outcome, time.perf_counter() - begun, is_drafted=is_drafted)
        if bool(outcome.verdict.is_done):
            reason = "stop" if tokens[-1] in request.stop_ids.tolist() else "length"
        accepted = int(outcome.verdict.accepted)
        yield Emission(token_ids=tokens, drafts_accepted=accepted, finish_reason=reason)
