# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a measurement may be asked for, checked before anything is loaded."""

import codecs
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from hybridspec.bench.shape import shape_directory
from hybridspec.core.errors import OptionError
from hybridspec.core.options import (
    Checkpoints,
    CorrectionName,
    DeviceName,
    EngineOptions,
    Mode,
    PolicyName,
    SamplingParams,
)

PROMPT_FIELDS = {"prompt", "source", "split"}
"""of a line of a prompts file; the last two only say where a prompt is from"""
World = Literal["chat", "agentic", "maths", "mixed"]
POLICIES = "plain,fixed,hybrid"
RANDOM_POLICIES = "plain,fixed:4,fixed:8,fixed:16,hybrid"
WORLD: World = "chat"
CONTEXT, PERSISTENCE = 1024, 0.4
RANDOM_ONLY = ("acceptance_world", "persistence", "correlation", "own_router", "context")
CHECKPOINT_ONLY = ("model", "draft_model", "prompts", "acceptance", "latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of decoding that is measured."""

    policy: PolicyName
    mode: Mode
    length: int | None = None
    """rows of a round under fixed; the block size if not given"""
    correction: CorrectionName | None = None
    """under hybrid; the engine's own if not given"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions(Checkpoints):
    """Which prompts, decoded in which ways, how often."""

    prompts: Path | None = None
    """File with one {"prompt": ...} a line; the prompts that ship if not given."""
    policies: str | None = None
    """Policies to compare, joined by commas: plain, fixed (the block size), fixed:N, hybrid, or
    hybrid:off, hybrid:one, hybrid:window by its correction; plain,fixed,hybrid if not given, with
    random weights plain,fixed:4,fixed:8,fixed:16,hybrid."""
    mode: Mode | None = None
    """Mode of the drafted policies: exact if not given, and plain is measured in both; with random
    weights that of all policies, fast if not given."""
    device: DeviceName = "auto"
    """Where to decode; auto takes a CUDA device if there is one."""
    max_new_tokens: int = 128
    """Most tokens to write for each prompt."""
    repeats: int = 3
    """How often each prompt goes through each policy."""
    shape: str | None = None
    """Shape that ships, to measure with random weights: qwen3.6-35b-a3b. Needs a CUDA device."""
    random_weights: bool = False
    """Says that the weights of the shape are random, and so that acceptance is not measured."""
    acceptance_world: World | None = None
    """Published acceptance that drafts of random weights follow; chat if not given."""
    persistence: float | None = None
    """Chance that a position keeps an expert of the one before it, 0 to 1; 0.4 if not given."""
    correlation: float | None = None
    """How far a token's new experts at the first router tell those at the others, 0 to 1; 0 if not
    given."""
    own_router: bool = False
    """Let random weights route as they will, instead of by persistence."""
    context: int | None = None
    """Tokens before the text that random weights write; 1024 if not given."""

    def __post_init__(self) -> None:
        SamplingParams(max_new_tokens=self.max_new_tokens)
        EngineOptions(mode=self.drafted_mode, device=self.device)
        if self.repeats < 1:
            raise OptionError(f"repeats must be at least 1, got {self.repeats}.")
        arms = self.arms
        self._check_weights()
        has_tables = self.acceptance is not None or self.latency is not None
        if has_tables and all(arm.policy != "hybrid" for arm in arms):
            raise OptionError(
                f"acceptance and latency belong to policy hybrid, which is not among the policies "
                f"{self.named_policies!r}: add it or leave them out."
            )

    def _check_weights(self) -> None:
        """A checkpoint or a shape, and each with its own options alone."""
        if self.shape is None and not self.random_weights:
            self._refuse(
                RANDOM_ONLY,
                "belongs to random weights: give shape and random_weights, or leave it out",
            )
            return
        if self.shape is None:
            raise OptionError("random_weights needs a shape: give --shape qwen3.6-35b-a3b.")
        shape_directory(self.shape)
        if not self.random_weights:
            raise OptionError(
                f"shape {self.shape} ships without weights: give --random-weights as well."
            )
        self._refuse(
            CHECKPOINT_ONLY,
            f"does not go with shape {self.shape}, whose weights are random: leave it out",
        )
        if self.persistence is not None and self.own_router:
            raise OptionError("persistence steers the router: leave out persistence or own_router.")
        if self.correlation is not None and self.own_router:
            raise OptionError("correlation steers the router: leave out correlation or own_router.")
        if not 0 <= self.known_correlation <= 1:
            raise OptionError(f"correlation must lie between 0 and 1, got {self.correlation}.")
        if not 0 <= self.known_persistence <= 1:
            raise OptionError(f"persistence must lie between 0 and 1, got {self.persistence}.")
        if self.known_context < 1:
            raise OptionError(f"context must be at least 1, got {self.context}.")

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value is not False:
                raise OptionError(f"{name} {reason}.")

    @property
    def named_policies(self) -> str:
        """Policies, given or not."""
        if self.policies is None:
            return RANDOM_POLICIES if self.random_weights else POLICIES
        return self.policies

    @property
    def drafted_mode(self) -> Mode:
        """Mode of the drafted policies, given or not."""
        if self.mode is None:
            return "fast" if self.random_weights else "exact"
        return self.mode

    @property
    def known_world(self) -> World:
        """Acceptance world, given or not."""
        return WORLD if self.acceptance_world is None else self.acceptance_world

    @property
    def known_persistence(self) -> float:
        """Persistence, given or not."""
        return PERSISTENCE if self.persistence is None else self.persistence

    @property
    def known_correlation(self) -> float:
        """Correlation, given or not."""
        return 0.0 if self.correlation is None else self.correlation

    @property
    def known_context(self) -> int:
        """Context, given or not."""
        return CONTEXT if self.context is None else self.context

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What to measure, in the order asked for."""
        return parse_policies(self.named_policies, self.drafted_mode)


def parse_policies(text: str, mode: Mode) -> tuple[Arm, ...]:
    """Arms named by `text`, e.g. `plain,fixed:16,hybrid`; raises OptionError for any other form."""
    arms = tuple(_parse_policy(name.strip(), text, mode) for name in text.split(","))
    for arm in arms:
        if arms.count(arm) > 1:
            raise OptionError(f"policies {text!r}: each policy may be named once.")
    return arms


def _parse_policy(name: str, text: str, mode: Mode) -> Arm:
    policy, colon, detail = name.partition(":")
    if policy not in ("plain", "fixed", "hybrid"):
        raise OptionError(
            f"policies {text!r}: {policy!r} is unknown; join plain, hybrid, fixed or fixed:N "
            "by commas."
        )
    if policy == "hybrid" and colon:
        if detail not in get_args(CorrectionName):
            raise OptionError(
                f"policies {text!r}: hybrid has no correction {detail!r}; write hybrid, "
                f"{', '.join(f'hybrid:{name}' for name in get_args(CorrectionName))}."
            )
        return Arm(policy=policy, mode=mode, correction=cast("CorrectionName", detail))
    length = None
    if colon:
        if not re.fullmatch("[0-9]{1,18}", detail):
            raise OptionError(
                f"policies {text!r}: {detail!r} is not a number of rows; write for example fixed:8."
            )
        length = int(detail)
    EngineOptions(policy=policy, length=length, mode=mode)
    return Arm(policy=policy, mode=mode, length=length)


def read_prompts(path: Path) -> list[str]:
    """Prompts of a JSON Lines file; raises OptionError that names the file and the line."""
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).rstrip().splitlines()
    except OSError as error:
        raise OptionError(
            f"prompts file {path} cannot be read ({error.strerror}); give a file of JSON lines."
        ) from None
    if not lines:
        raise OptionError(f'prompts file {path} is empty; write one {{"prompt": ...}} a line.')
    return [_read_prompt(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _read_prompt(line: bytes, place: str) -> str:
    try:
        record: object = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise OptionError(f"{place}: byte {error.start} is not UTF-8; save it as UTF-8.") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise OptionError(f'{place}: not JSON ({error}); write {{"prompt": ...}}.') from None
    except ValueError:
        raise OptionError(f"{place}: holds a number that is too long; write a string.") from None
    names = set(cast("dict[str, object]", record)) if isinstance(record, dict) else set[str]()
    if "prompt" not in names or names - PROMPT_FIELDS:
        raise OptionError(
            f'{place}: expected an object with "prompt" and, if at all, "source" and "split".'
        )
    prompt = cast("dict[str, object]", record)["prompt"]
    if not isinstance(prompt, str):
        raise OptionError(f"{place}: prompt must be a string, got {json.dumps(prompt)[:60]}.")
    if not prompt:
        raise OptionError(f"{place}: the prompt is empty; give it some text.")
    if any("\ud800" <= character <= "\udfff" for character in prompt):
        raise OptionError(f"{place}: the prompt holds half of a surrogate pair; it is not text.")
    return prompt
