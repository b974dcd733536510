# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a measurement found: as data, as JSON and as a table.

Every figure has one definition, stated in the notes under the table.
"""

from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol

from hybridspec.bench.loops import LONGEST_PERIOD, WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridspec.bench.circumstances import Circumstances


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, least and most over the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: "Iterable[float]") -> "Spread":
        """The spread of at least one value."""
        known = list(values)
        return cls(median=median(known), low=min(known), high=max(known))

    def __str__(self) -> str:
        return f"{self.median:.1f} ({self.low:.1f}..{self.high:.1f})"


class Report(Protocol):
    """What a measurement prints."""

    def to_json(self) -> dict[str, object]:
        """As one JSON object."""
        ...

    def table(self) -> str:
        """Plain text for people, at most 100 columns."""
        ...


class Lengths(Protocol):
    """An arm's rounds by length."""

    @property
    def name(self) -> str:
        """Of the arm."""
        ...

    @property
    def lengths(self) -> dict[int, int]:
        """Rounds by rows read."""
        ...

    @property
    def rounds_drafted(self) -> int:
        """Those of them that began with a draft."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport:
    """How one policy did."""

    name: str
    mode: str
    tokens_per_second: Spread
    ms_per_round: Spread
    over_plain_exact: Spread
    over_plain_fast: Spread
    over_fixed: Spread | None
    """None where fixed at the block size was not measured"""
    tokens_per_round: float
    mean_length: float
    lengths: dict[int, int]
    """rounds of one repeat by rows read"""
    rounds_drafted: int
    """those of them that began with a draft"""
    identical: int
    """prompts whose ids equal plain's of the same mode in every repeat"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport:
    """How all policies did on the same prompts."""

    arms: tuple[ArmReport, ...]
    mode: str
    block_size: int | None
    """None where no drafter ran"""
    prompts: int
    looping: int
    """prompts whose plain continuation ends in a loop"""
    max_new_tokens: int
    repeats: int
    latency: dict[str, object] | None
    """the table that hybrid chose by; None where hybrid did not run"""
    acceptance: dict[str, object] | None
    """how well it foresaw which drafts are right, before and after learning; None likewise, and
    where a table was named, so that nothing was learnt"""
    circumstances: "Circumstances"

    def to_json(self) -> dict[str, object]:
        """The same as one JSON object."""
        return {
            "benchmark": "decode",
            "mode": self.mode,
            "block_size": self.block_size,
            "prompts": self.prompts,
            "looping": self.looping,
            "max_new_tokens": self.max_new_tokens,
            "repeats": self.repeats,
            "latency": self.latency,
            "acceptance": self.acceptance,
            "arms": [_arm_to_json(arm) for arm in self.arms],
            **self.circumstances.to_json(),
        }

    def table(self) -> str:
        """Plain text for people, at most 100 columns."""
        fixed = f"x fixed:{self.block_size}" if self.block_size else "x fixed"
        head = (
            "policy", "tok/s", "ms/round", "x plain", "x fast", fixed, "tok/round", "rows",
            "same ids",
        )  # fmt: skip
        lines = aligned([head, *(_row(arm, self.prompts) for arm in self.arms)])
        lines += ["", *histograms(self.arms), *self.notes(), ""]
        return "\n".join(lines)

    def notes(self) -> tuple[str, ...]:
        """What the figures mean and what they were measured with."""
        return (
            f"{self.prompts} prompts x {self.max_new_tokens} tokens, {self.repeats} repeats with "
            "the policies interleaved; median (least..most) of the repeats.",
            "x: speed-up over plain in exact mode, plain in fast mode and fixed at the block size, "
            "each within a repeat; rows: read a round.",
            f"All figures leave out what follows a loop: {WINDOW} tokens with a "
            f"period of at most {LONGEST_PERIOD} (in {self.looping} of {self.prompts} prompts).",
            f"same ids: prompts with the ids of plain in the same mode, of {self.prompts}.",
            self.circumstances.sentence(),
        )


def _arm_to_json(arm: ArmReport) -> dict[str, object]:
    return {**asdict(arm), "lengths": {str(rows): count for rows, count in arm.lengths.items()}}


def _row(arm: ArmReport, prompts: int) -> tuple[str, ...]:
    return (
        arm.name,
        str(arm.tokens_per_second),
        f"{arm.ms_per_round.median:.2f}",
        f"{arm.over_plain_exact.median:.2f}",
        f"{arm.over_plain_fast.median:.2f}",
        f"{arm.over_fixed.median:.2f}" if arm.over_fixed else "-",
        f"{arm.tokens_per_round:.2f}",
        f"{arm.mean_length:.2f}",
        f"{arm.identical}/{prompts}",
    )


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def histograms(arms: "Iterable[Lengths]") -> list[str]:
    """A line for each arm whose rounds differ in length."""
    lines = [
        f"rows a round, {arm.name}: "
        + ", ".join(f"{count} x {rows}" for rows, count in sorted(arm.lengths.items()))
        + f"; {arm.rounds_drafted} of {sum(arm.lengths.values())} rounds drafted"
        for arm in arms
        if len(arm.lengths) > 1
    ]
    return [*lines, ""] if lines else []
