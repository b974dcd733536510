# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a user may choose, checked when it is chosen.

`mode` and `policy` are the only options that switch algorithms.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hybridspec.core.errors import OptionError

MAX_ROWS = 16
"""Most rows that the target reads in a round, and the row count of every product in exact mode."""

Mode = Literal["exact", "fast"]
PolicyName = Literal["hybrid", "fixed", "plain"]
CorrectionName = Literal["off", "one", "window"]
DeviceName = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Which target and drafter, and what is known about them."""

    model: str | None = None
    """Checkpoint directory or hub id of the target; the embedded pair if not given."""
    draft_model: str | None = None
    """Checkpoint directory or hub id of the drafter that belongs to the target."""
    acceptance: Path | None = None
    """Acceptance file of the drafter; its own if not given."""
    latency: Path | None = None
    """Latency table of this device; the saved one, or measured at start, if not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How much to write, and how."""

    max_new_tokens: int = 256
    """Most tokens to write; the first, which the prompt's own pass gives, is counted."""
    temperature: float = 0.0
    """Only 0 (greedy) so far."""

    def __post_init__(self) -> None:
        if not _is_whole(self.max_new_tokens) or self.max_new_tokens < 1:
            raise OptionError(
                f"max_new_tokens must be a whole number of at least 1, got {self.max_new_tokens!r}."
            )
        if not isinstance(self.temperature, int | float) or self.temperature != 0:
            raise OptionError(
                f"temperature {self.temperature!r} is not supported yet: decoding is greedy; "
                "leave it at 0."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which algorithm decodes, on which device."""

    policy: PolicyName = "hybrid"
    """hybrid chooses the rows of each round, fixed always reads the same number, plain never
    drafts."""
    length: int | None = None
    """Rows of a round under fixed, anchor included; the drafter's block size if not given."""
    correction: CorrectionName | None = None
    """What the first router may change under hybrid, where its experts have a price: off nothing,
    one adds a row, window reads up to two rows more or fewer; one if not given."""
    mode: Mode = "exact"
    """exact: output equals plain decoding bit for bit. fast: may differ at near-ties."""
    device: DeviceName = "auto"
    """auto takes a CUDA device if there is one."""

    def __post_init__(self) -> None:
        _one_of("policy", self.policy, get_args(PolicyName))
        _one_of("mode", self.mode, get_args(Mode))
        _one_of("device", self.device, get_args(DeviceName))
        if self.correction is not None:
            _one_of("correction", self.correction, get_args(CorrectionName))
            self._only_under("hybrid", "correction")
        if self.length is None:
            return
        self._only_under("fixed", "length")
        if not _is_whole(self.length) or not 1 <= self.length <= MAX_ROWS:
            raise OptionError(
                f"length must be a whole number from 1 to {MAX_ROWS}, got {self.length!r}."
            )

    def _only_under(self, policy: PolicyName, name: str) -> None:
        if self.policy != policy:
            raise OptionError(
                f"{name} belongs to policy {policy}, but the policy is {self.policy}: "
                f"give policy {policy} or leave {name} out."
            )


def check_length(length: int | None, block_size: int) -> None:
    """Raise OptionError where a length exceeds the drafter's block."""
    if length is not None and length > block_size:
        raise OptionError(
            f"length {length} exceeds the drafter's block of {block_size} rows: "
            f"give 1 to {block_size}."
        )


def check_context(positions: int) -> None:
    """Raise OptionError unless this is a number of positions."""
    if not _is_whole(positions) or positions < 1:
        raise OptionError(f"max_context must be a whole number of at least 1, got {positions!r}.")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"unknown {name} {value!r}: choose one of {', '.join(known)}.")
