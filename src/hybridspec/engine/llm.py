# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What users call: a loaded pair, prompts in, completions or a stream of chunks out."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import overload
from weakref import WeakSet

from hybridspec.core import device as devices
from hybridspec.core.errors import OptionError, PromptError
from hybridspec.core.options import (
    DEFAULT_CORRECTION,
    CorrectionName,
    DeviceName,
    EngineOptions,
    Mode,
    PolicyName,
    SamplingParams,
    check_context,
    check_length,
)
from hybridspec.core.records import Chunk, Completion
from hybridspec.engine.graph import CapturedRounds
from hybridspec.engine.kept import Kept, room_for
from hybridspec.engine.learning import Learning
from hybridspec.engine.loading import Progress, load_pair
from hybridspec.engine.loop import Tally, decode, read_prompt
from hybridspec.engine.measure import after_tokens, measure, measure_routing
from hybridspec.engine.memory import free_bytes
from hybridspec.engine.round import Request, Rounds
from hybridspec.engine.tables import Tables
from hybridspec.kernels.reference.clock import Clock
from hybridspec.policy.calibration import AcceptanceReport
from hybridspec.policy.drafting import Drafting
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed, Hybrid
from hybridspec.policy.routing import correction_of

log = logging.getLogger("hybridspec")
BLOCKS = 4
"""blocks that price experts where no table is known; `hybridspec profile` takes more"""


class LLM:
    """A target, its drafter and a policy.

    >>> from hybridspec import LLM, SamplingParams
    >>> llm = LLM()  # the pair that ships inside
    >>> llm.generate("def add(a, b):", SamplingParams(max_new_tokens=8)).finish_reason
    'length'
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        draft_model: str | Path | None = None,
        policy: PolicyName = "hybrid",
        length: int | None = None,
        correction: CorrectionName | None = None,
        mode: Mode = "exact",
        device: DeviceName = "auto",
        acceptance: str | Path | None = None,
        latency: str | Path | None = None,
        max_context: int = 1,
        progress: Progress | None = None,
    ) -> None:
        """Load a checkpoint directory or hub id and its DFlash drafter, or the embedded pair.

        acceptance, latency: tables to use instead of those found beside the drafter and in the
        cache; beside a table that is named nothing is learnt of drafts, and a latency table that
        is named is not put right by what rounds take. max_context: positions (prompt and new
        tokens) that must fit into the device's memory, checked before anything is loaded; each
        request is checked again. progress: told what is read, its bytes so far, and all of them.
        Raises HybridSpecError with what is wrong and what to do.
        """
        check_context(max_context)
        options = EngineOptions(
            policy=policy, length=length, correction=correction, mode=mode, device=device
        )
        if policy != "hybrid" and (acceptance is not None or latency is not None):
            name = "acceptance" if acceptance is not None else "latency"
            raise OptionError(
                f"{name} belongs to policy hybrid, but the policy is {policy}: "
                f"give policy hybrid or leave {name} out."
            )
        found = devices.pick(device)
        pair = load_pair(
            model,
            draft_model,
            needs_drafter=policy != "plain",
            mode=mode,
            device=found,
            max_context=max_context,
            progress=progress,
        )
        tables = Tables(
            pair=pair,
            mode=mode,
            device=found,
            named_acceptance=_path(acceptance),
            named_latency=_path(latency),
        )
        self._acceptance, self._siblings = None, WeakSet["LLM"]()
        self._set_up(options, tables)

    @property
    def block_size(self) -> int:
        """Rows of the drafter's block, anchor included; 1 without a drafter."""
        return self.pair.block_size

    @property
    def latency(self) -> Latency | None:
        """The table that hybrid chooses by; None before it is measured, or under other policies."""
        return self._latency

    def acceptance_report(self) -> AcceptanceReport | None:
        """How well drafts were foreseen, before and after learning; None where nothing is learnt.

        Waits for the device.
        """
        return None if self._learning is None else self._learning.report()

    @property
    def tables(self) -> Tables:
        """Where its tables are found, and what they belong to."""
        return self._tables

    def using(
        self,
        *,
        policy: PolicyName | None = None,
        length: int | None = None,
        correction: CorrectionName | None = None,
        mode: Mode | None = None,
    ) -> "LLM":
        """The same weights under another policy, correction or mode.

        `length` is not kept; `correction` is, under hybrid. Raises OptionError.
        """
        policy = self.options.policy if policy is None else policy
        if correction is None and policy == "hybrid":
            correction = self.options.correction
        options = EngineOptions(
            policy=policy,
            length=length,
            correction=correction,
            mode=self.options.mode if mode is None else mode,
            device=self.options.device,
        )
        pair = replace(self.pair, target=self.pair.target.using(options.mode))
        other = object.__new__(LLM)
        other._acceptance, other._siblings = self._acceptance, self._siblings
        other._set_up(options, replace(self._tables, pair=pair, mode=options.mode))
        return other

    def _set_up(self, options: EngineOptions, tables: Tables) -> None:
        self.options, self.pair, self.device = options, tables.pair, tables.device
        self._tables, self._latency, self._drafting = tables, None, Drafting()
        # a table that the user names is taken at its word, and a run repeats itself
        is_named = tables.named_latency is not None
        self._clock = None if is_named else Clock.empty(self.block_size, self.device)
        self._correction = self._learning = None
        self._kept = Kept()
        self._siblings.add(self)
        if options.policy != "plain" and self.pair.drafter is None:
            raise OptionError(f"policy {options.policy} needs a draft model: none is loaded.")
        check_length(options.length, self.block_size)
        if options.policy == "hybrid":
            self._latency = tables.latency()
            self._acceptance = self._acceptance or tables.acceptance()
            self._learning = Learning.begun(self._acceptance, tables) if tables.learns else None

    @overload
    def generate(self, prompt: str, params: SamplingParams | None = None) -> Completion: ...
    @overload
    def generate(
        self, prompt: list[str], params: SamplingParams | None = None
    ) -> list[Completion]: ...
    def generate(
        self, prompt: str | list[str], params: SamplingParams | None = None
    ) -> Completion | list[Completion]:
        """Complete a prompt, or each of several, one after the other."""
        if isinstance(prompt, list):
            for one in prompt:  # all, before the first is decoded
                self.check(one)
            return [Completion.of(list(self.stream(one, params))) for one in prompt]
        return Completion.of(list(self.stream(prompt, params)))

    def stream(self, prompt: str, params: SamplingParams | None = None) -> Iterator[Chunk]:
        """One chunk a round as it is decoded; the first holds the prompt's own token."""
        if params is None:
            params = SamplingParams()
        elif not isinstance(params, SamplingParams):
            raise OptionError(f"params must be SamplingParams, got {params!r:.60}.")
        rounds = self._begin(self._encode(prompt), params)
        return self._kept_after(rounds)

    def _kept_after(self, rounds: Rounds) -> Iterator[Chunk]:
        """Their chunks. However these end once begun, the rounds are kept, and what they taught."""
        try:
            yield from self._chunks(rounds)
        finally:
            self._kept.put(rounds)
            if self._learning is not None:
                self._learning.keep()

    def _chunks(self, rounds: Rounds) -> Iterator[Chunk]:
        text, tally = self.pair.tokenizer.stream(), Tally()
        ahead = 1 if self.device.type == "cuda" else 0
        for emission in decode(rounds, tally, ahead=ahead):
            accepted = emission.drafts_accepted
            drafted = text.push(emission.token_ids[:accepted])
            own = text.push(emission.token_ids[accepted:])
            if emission.finish_reason is not None:
                own += text.finish()
            yield Chunk(
                text=drafted + own,
                drafted_text=drafted,
                token_ids=emission.token_ids,
                drafts_accepted=emission.drafts_accepted,
                finish_reason=emission.finish_reason,
                stats=tally.stats(),
            )

    def check(self, prompt: str) -> None:
        """Raise PromptError unless the prompt can be decoded."""
        self._encode(prompt)

    def _encode(self, prompt: str) -> list[int]:
        if not isinstance(prompt, str):
            raise PromptError(f"a prompt must be a string, got {prompt!r:.60}.")
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise PromptError("the prompt holds half of a surrogate pair, which is no text.")
        ids = self.pair.tokenizer.encode(prompt)
        positions = self.pair.target.config.max_position_embeddings
        if not ids:
            raise PromptError("the prompt is empty: give at least one character.")
        if len(ids) > positions:
            raise PromptError(
                f"the prompt has {len(ids)} tokens, the model {positions} positions: "
                f"shorten it by {len(ids) - positions} tokens."
            )
        return ids

    def _begin(self, prompt_ids: list[int], params: SamplingParams) -> Rounds:
        """Rounds that have read the prompt; latency is measured there if no table is known."""
        positions = self.pair.target.config.max_position_embeddings
        # the last emitted token is never read, so it may stand one past the positions
        budget = min(params.max_new_tokens, positions - len(prompt_ids) + 1)
        rounds = self._rounds_for(len(prompt_ids) + budget)
        rounds.reset()
        target, drafter = rounds.target, rounds.drafter
        read_prompt(rounds.request, prompt_ids, target=target, drafter=drafter, budget=budget)
        if self.options.policy == "hybrid" and not isinstance(rounds.policy, Hybrid):
            rounds.policy = self._hybrid(self._latency or self._measure(rounds, prompt_ids))
            rounds.policy.reset()
        return rounds

    def _rounds_for(self, positions: int) -> Rounds:
        """Those of a text that is over, if they have the room; else new ones."""
        kept = self._kept.take(positions)
        if kept is not None:
            return kept
        self._check_room(positions)
        is_plain = self.options.policy == "plain"
        target = replace(self.pair.target, taps=()) if is_plain else self.pair.target
        drafter = None if is_plain else self.pair.drafter
        request = Request.empty(
            target,
            drafter,
            stop_ids=self.pair.tokenizer.stop_ids,
            positions=room_for(positions, self.pair.memory.positions),
        )
        fixed = Fixed(self._rows(), device=self.device)
        kind = CapturedRounds if self.device.type == "cuda" else Rounds
        return kind(target=target, drafter=drafter, policy=fixed, request=request)

    def _hybrid(self, latency: Latency) -> Hybrid:
        assert self._acceptance is not None
        self._latency = latency
        self._correction = self._correction or correction_of(
            self.options.correction or DEFAULT_CORRECTION, latency.routing, self.device
        )
        return Hybrid(
            acceptance=self._acceptance,
            latency=latency,
            correction=self._correction,
            drafting=self._drafting,
            clock=self._clock,
            learning=None if self._learning is None else self._learning.state,
            device=self.device,
        )

    def _check_room(self, positions: int) -> None:
        """Raise OptionError where the states of a request do not fit into what is free.

        What is kept for other requests is freed for it.
        """
        memory = self.pair.memory
        if self.options.policy == "plain":
            memory = replace(memory, drafter=None)
        self._kept.drop()
        free = free_bytes(self.device)
        if free is not None and memory.needed(positions, is_loaded=True) > free:
            for sibling in self._siblings:
                sibling._kept.drop()
            free = free_bytes(self.device)
        memory.check(positions, free, is_loaded=True)

    def _measure(self, rounds: Rounds, prompt_ids: list[int]) -> Latency:
        latency = measure(rounds, self.block_size)
        moves = after_tokens(rounds, prompt_ids, BLOCKS)
        latency = replace(latency, routing=measure_routing(rounds, self.block_size, moves))
        self._tables.keep(latency)
        return latency

    def _rows(self) -> int:
        if self.options.policy == "plain":
            return 1
        return self.options.length or self.block_size


def _path(name: str | Path | None) -> Path | None:
    return None if name is None else Path(name)
