# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a measurement may be asked for, checked before anything is loaded."""

import codecs
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hybridspec.core.errors import OptionError
from hybridspec.core.options import (
    Checkpoints,
    DeviceName,
    EngineOptions,
    Mode,
    PolicyName,
    SamplingParams,
)

PROMPT_FIELDS = {"prompt", "source", "split"}
"""of a line of a prompts file; the last two only say where a prompt is from"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way of decoding that is measured."""

    policy: PolicyName
    mode: Mode
    length: int | None = None
    """rows of a round under fixed; the block size if not given"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions(Checkpoints):
    """Which prompts, decoded in which ways, how often."""

    prompts: Path | None = None
    """File with one {"prompt": ...} a line; the prompts that ship if not given."""
    policies: str = "plain,fixed,hybrid"
    """Policies to compare: plain, hybrid, fixed (the block size) or fixed:N, joined by commas."""
    mode: Mode = "exact"
    """Mode of the drafted policies; plain is always measured in both."""
    device: DeviceName = "auto"
    """Where to decode; auto takes a CUDA device if there is one."""
    max_new_tokens: int = 128
    """Most tokens to write for each prompt."""
    repeats: int = 3
    """How often each prompt goes through each policy."""

    def __post_init__(self) -> None:
        SamplingParams(max_new_tokens=self.max_new_tokens)
        EngineOptions(mode=self.mode, device=self.device)
        if self.repeats < 1:
            raise OptionError(f"repeats must be at least 1, got {self.repeats}.")
        arms = self.arms
        has_tables = self.acceptance is not None or self.latency is not None
        if has_tables and all(arm.policy != "hybrid" for arm in arms):
            raise OptionError(
                f"acceptance and latency belong to policy hybrid, which is not among the policies "
                f"{self.policies!r}: add it or leave them out."
            )

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What to measure, in the order asked for."""
        return parse_policies(self.policies, self.mode)


def parse_policies(text: str, mode: Mode) -> tuple[Arm, ...]:
    """Arms named by `text`, e.g. `plain,fixed:16,hybrid`; raises OptionError for any other form."""
    arms = tuple(_parse_policy(name.strip(), text, mode) for name in text.split(","))
    for arm in arms:
        if arms.count(arm) > 1:
            raise OptionError(f"policies {text!r}: each policy may be named once.")
    return arms


def _parse_policy(name: str, text: str, mode: Mode) -> Arm:
    policy, colon, number = name.partition(":")
    if policy not in ("plain", "fixed", "hybrid"):
        raise OptionError(
            f"policies {text!r}: {policy!r} is unknown; join plain, hybrid, fixed or fixed:N "
            "by commas."
        )
    length = None
    if colon:
        if not re.fullmatch("[0-9]{1,18}", number):
            raise OptionError(
                f"policies {text!r}: {number!r} is not a number of rows; write for example fixed:8."
            )
        length = int(number)
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
