# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What users call: a loaded pair, prompts in, completions or a stream of chunks out."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import overload
from weakref import WeakSet

from hybridspec.core import device as devices
from hybridspec.core.errors import OptionError, PromptError
from hybridspec.core.options import (
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
from hybridspec.engine.experience import Experience
from hybridspec.engine.loading import Pair, Progress, load_pair
from hybridspec.engine.loop import Tally, decode
from hybridspec.engine.opening import Opening
from hybridspec.engine.round import Rounds
from hybridspec.engine.tables import Tables
from hybridspec.policy.calibration import AcceptanceReport
from hybridspec.policy.latency import Latency


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
        self._set_up(options, tables, of=None)

    @property
    def pair(self) -> Pair:
        """The loaded models and their tokenizer."""
        return self.opening.pair

    @property
    def block_size(self) -> int:
        """Rows of the drafter's block, anchor included; 1 without a drafter."""
        return self.pair.block_size

    @property
    def latency(self) -> Latency | None:
        """The table that hybrid chooses by; None before it is measured, or under other policies."""
        return None if self._experience is None else self._experience.latency

    def acceptance_report(self) -> AcceptanceReport | None:
        """How well drafts were foreseen, before and after learning; None where nothing is learnt.

        Waits for the device.
        """
        learning = None if self._experience is None else self._experience.learning
        return None if learning is None else learning.report()

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
        other._set_up(options, replace(self._tables, pair=pair, mode=options.mode), of=self)
        return other

    def _set_up(self, options: EngineOptions, tables: Tables, of: "LLM | None") -> None:
        """Beside an LLM of the same weights, if there is one."""
        self.options, self.device, self._tables = options, tables.device, tables
        if options.policy != "plain" and tables.pair.drafter is None:
            raise OptionError(f"policy {options.policy} needs a draft model: none is loaded.")
        check_length(options.length, tables.pair.block_size)
        self._experience = None
        if options.policy == "hybrid":
            loaded = None if of is None or of._experience is None else of._experience.acceptance
            self._experience = Experience.begun(tables, options.correction, loaded)
        self.opening = Opening(
            options=options,
            pair=tables.pair,
            experience=self._experience,
            siblings=WeakSet() if of is None else of.opening.siblings,
        )

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
        """One chunk a round as it is decoded; the first, the prompt's own token, has it read."""
        if params is None:
            params = SamplingParams()
        elif not isinstance(params, SamplingParams):
            raise OptionError(f"params must be SamplingParams, got {params!r:.60}.")
        return self._chunks(self._encode(prompt), params.max_new_tokens)

    def _chunks(self, prompt_ids: list[int], max_new_tokens: int) -> Iterator[Chunk]:
        """Read the prompt and decode; however that ends, what it taught is kept."""
        with self.opening.text(prompt_ids, max_new_tokens) as rounds:
            try:
                yield from self._told(rounds)
            finally:
                if self._experience is not None:
                    self._experience.keep()

    def _told(self, rounds: Rounds) -> Iterator[Chunk]:
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


def _path(name: str | Path | None) -> Path | None:
    return None if name is None else Path(name)
