# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What decoding with random weights found: as data, as JSON and as a table."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hybridspec.bench.report import Spread, aligned, histograms

if TYPE_CHECKING:
    from hybridspec.bench.circumstances import Circumstances

WEIGHTS = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomArmReport:
    """How one policy did on one text."""

    name: str
    tokens_per_second: Spread
    ms_per_round: Spread
    over_plain: Spread | None
    """each within a repeat; None where plain was not measured"""
    rounds: int
    rounds_drafted: int
    tokens_per_round: float
    mean_length: float
    lengths: dict[int, int]
    """rounds by rows read"""
    phases_ms: dict[str, float]
    """of a round in pieces, by phase; they are measured apart, and add up to more than a round"""
    experts_a_layer: float
    """distinct routed experts that a round fetched, mean of rounds and layers"""
    gigabytes_a_round: float
    """that are needed: bench/bytes.py"""
    share_of_bandwidth: float
    """those bytes in a round's time, of `bandwidth`"""

    def to_json(self) -> dict[str, object]:
        """One object, which says whose weights these numbers have."""
        lengths = {str(rows): count for rows, count in sorted(self.lengths.items())}
        return {"weights": WEIGHTS, **asdict(self), "lengths": lengths}


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomReport:
    """How all policies did on the same scripted text."""

    arms: tuple[RandomArmReport, ...]
    shape: str
    mode: str
    block_size: int
    acceptance_world: str
    persistence: float | None
    """None: the router's own choice"""
    correlation: float
    context: int
    max_new_tokens: int
    repeats: int
    bandwidth: float
    """bytes a second"""
    latency: dict[str, object] | None
    """the table that hybrid chose by; None where hybrid did not run"""
    circumstances: "Circumstances"

    def to_json(self) -> dict[str, object]:
        """The same as one JSON object."""
        return {
            "benchmark": "decode",
            "weights": WEIGHTS,
            "shape": self.shape,
            "mode": self.mode,
            "block_size": self.block_size,
            "acceptance_world": self.acceptance_world,
            "persistence": self.persistence,
            "correlation": self.correlation,
            "context": self.context,
            "max_new_tokens": self.max_new_tokens,
            "repeats": self.repeats,
            "bandwidth": self.bandwidth,
            "latency": self.latency,
            "arms": [arm.to_json() for arm in self.arms],
            **self.circumstances.to_json(),
        }

    def table(self) -> str:
        """Plain text for people, at most 100 columns."""
        head = (
            "policy", "weights", "tok/s", "x plain", "ms", "tokens", "rows", "experts", "GB",
            f"{self.bandwidth / 1e12:g} TB/s",
        )  # fmt: skip
        phases = list(self.arms[0].phases_ms)
        pieces = [(arm.name, WEIGHTS, *_milliseconds(arm)) for arm in self.arms]
        lines = aligned([head, *map(_row, self.arms)])
        lines += ["", *aligned([("ms a round in pieces", "weights", *phases), *pieces])]
        return "\n".join([*lines, "", *histograms(self.arms), *self.notes(), ""])

    def notes(self) -> tuple[str, ...]:
        """What the figures mean and what they were measured with."""
        steering = (
            "the router's own choice"
            if self.persistence is None
            else f"steered, each kept from the position before with chance {self.persistence:g}, "
            f"new ones at the first router tell of the others by {self.correlation:g}"
        )
        return (
            f"Random weights in the shape of {self.shape}, {self.mode} mode: {self.max_new_tokens} "
            f"tokens after {self.context}, {self.repeats} repeats",
            "with the policies interleaved; median (least..most) of the repeats.",
            "The text is scripted, and acceptance is not measured but drawn: world "
            f"{self.acceptance_world}.",
            f"experts: distinct routed ones a layer, {steering}.",
            "ms, tokens, rows, experts, GB: of a round. GB: needed, each weight once, states and "
            f"keys as read once; {self.bandwidth / 1e12:g} TB/s: their share of that speed.",
            self.circumstances.sentence(),
        )


def _row(arm: RandomArmReport) -> tuple[str, ...]:
    return (
        arm.name,
        WEIGHTS,
        str(arm.tokens_per_second),
        f"{arm.over_plain.median:.2f}" if arm.over_plain else "-",
        f"{arm.ms_per_round.median:.2f}",
        f"{arm.tokens_per_round:.2f}",
        f"{arm.mean_length:.2f}",
        f"{arm.experts_a_layer:.1f}",
        f"{arm.gigabytes_a_round:.2f}",
        f"{arm.share_of_bandwidth:.0%}",
    )


def _milliseconds(arm: RandomArmReport) -> list[str]:
    return [f"{value:.3f}" for value in arm.phases_ms.values()]
