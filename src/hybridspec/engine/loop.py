# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The host's part: feed the prompt, enqueue rounds, drain the ring, and count.

`seconds` holds rounds alone: neither the prompt's pass, nor measuring, nor the time that a reader
of the stream takes.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch

from hybridspec.core.records import FinishReason, Stats
from hybridspec.engine.graph import Mailbox
from hybridspec.engine.round import SLOTS, Proposer, Reader, Request, Rounds
from hybridspec.kernels.reference.accept import ACCEPTED, DONE, ROUND, ROWS
from hybridspec.models.target import PREFILL_CHUNK, PREFILL_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """What one round hands to the host."""

    token_ids: tuple[int, ...]
    drafts_accepted: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a round left in its slot of the ring."""

    tokens: tuple[int, ...]
    """what it emitted; nothing if it came after the end"""
    rows: int
    """that the target read to the end; 0 after the end"""
    is_done: bool
    is_drafted: bool


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

    def add(self, entry: Entry, seconds: float) -> None:
        """Count one round."""
        self.rounds += 1
        self.rounds_drafted += entry.is_drafted
        self.tokens += len(entry.tokens)
        self.rows_read += entry.rows
        self.drafts_accepted += len(entry.tokens) - 1
        self.lengths[entry.rows] += 1
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
    target: Reader,
    drafter: Proposer | None,
    stop_ids: tuple[int, ...],
    budget: int,
) -> Request:
    """A request of its own that has read its prompt, as by `read_prompt`."""
    positions = len(prompt_ids) + budget
    request = Request.empty(target, drafter, stop_ids=stop_ids, positions=positions)
    read_prompt(request, prompt_ids, target=target, drafter=drafter, budget=budget)
    return request


@torch.inference_mode()
def read_prompt(
    request: Request,
    prompt_ids: list[int],
    *,
    target: Reader,
    drafter: Proposer | None,
    budget: int,
) -> None:
    """Read a prompt into a request that has read nothing, in place, and open its ledger.

    The anchor is then the first emitted token, paid for from the budget.
    """
    assert len(prompt_ids) + budget <= request.positions
    device = target.head.device
    prompt = torch.tensor(prompt_ids, dtype=torch.int64, device=device)
    reading = None
    rows = PREFILL_CHUNK if device.type == "cuda" else PREFILL_ROWS
    for begin in range(0, len(prompt), rows):
        reading = target.read_prompt(prompt[begin : begin + rows], request.target)
        if drafter is not None:
            drafter.take(reading.taps, request.draft)
    assert reading is not None
    request.ledger.open(reading.tokens[-1], budget - 1)


@dataclass(slots=True, kw_only=True)
class Feed:
    """Enqueues the rounds of a request and drains what they left, `ahead` of them later.

    The kind of a round is decided from all rounds that were drained before it: on a CPU, where
    nothing is enqueued ahead, from all before it. Rounds that are enqueued after the end change
    nothing, and are never drained.
    """

    rounds: Rounds
    mailbox: Mailbox
    ahead: int = 0
    """rounds that are enqueued behind the one that is drained, less than SLOTS"""
    context: int
    """committed positions, as far as rounds were drained"""
    left: int
    """tokens that may still be emitted, likewise"""
    drained: int
    """rounds, those before this feed included"""
    _drafted: deque[bool] = field(default_factory=deque[bool])
    """of each round that is enqueued and not drained: did it draft"""

    @classmethod
    def of(cls, rounds: Rounds, ahead: int = 0) -> "Feed":
        """A feed that goes on where the request stands. Waits for the device."""
        assert 0 <= ahead < SLOTS
        ledger = rounds.request.ledger
        return cls(
            rounds=rounds,
            mailbox=Mailbox(ledger),
            ahead=ahead,
            context=int(ledger.length),
            left=int(ledger.budget),
            drained=int(ledger.rounds),
        )

    def next(self) -> Entry:
        """The next round's entry. Not to be called after one that is done."""
        while len(self._drafted) <= self.ahead:
            self._enqueue()
        entry = read_slot(self.mailbox, self.drained, is_drafted=self._drafted.popleft())
        self.drained += 1
        self._tell(entry)
        return entry

    def _enqueue(self) -> None:
        rounds = self.rounds
        is_drafted = rounds.drafter is not None and rounds.policy.wants_drafts(
            self.context, self.left
        )
        if is_drafted:
            rounds.drafted_round()
        else:
            rounds.plain_round()
        self.mailbox.post(self.drained + len(self._drafted))
        self._drafted.append(is_drafted)

    def _tell(self, entry: Entry) -> None:
        """What the policy's part on the host and this feed know of rounds, they know from here."""
        policy, tokens = self.rounds.policy, len(entry.tokens)
        if entry.is_drafted:
            policy.see_drafted(self.context, rows=entry.rows, tokens=tokens)
        else:
            policy.see_plain(self.context)
        self.context += tokens
        self.left -= tokens


def read_slot(mailbox: Mailbox, number: int, *, is_drafted: bool) -> Entry:
    """The entry of round `number`. Waits for the device."""
    slot = mailbox.read(number)
    assert slot[ROUND] == number, "a slot is drained before it is written again"
    return Entry(
        tokens=tuple(slot[: slot[ACCEPTED] + 1]),
        rows=slot[ROWS],
        is_done=bool(slot[DONE]),
        is_drafted=is_drafted,
    )


@torch.inference_mode()
def decode(rounds: Rounds, tally: Tally, *, ahead: int = 0) -> Iterator[Emission]:
    """Rounds until the text ends; the first emission is the prompt's own token and no round."""
    feed, request = Feed.of(rounds, ahead), rounds.request
    first, stop_ids = int(request.ledger.anchor), cast("list[int]", request.stop_ids.tolist())
    tally.tokens = 1
    reason = "stop" if first in stop_ids else "length" if not feed.left else None
    yield Emission(token_ids=(first,), drafts_accepted=0, finish_reason=reason)
    while reason is None:
        begun = time.perf_counter()
        entry = feed.next()
        tally.add(entry, time.perf_counter() - begun)
        if entry.is_done:
            reason = "stop" if entry.tokens[-1] in stop_ids else "length"
        accepted = len(entry.tokens) - 1
        yield Emission(token_ids=entry.tokens, drafts_accepted=accepted, finish_reason=reason)
