# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Other rules for the length, for comparison only: no engine decodes by them.

They count on the host, in Python's floats, one round at a time. The rule that decodes is
`policy.Hybrid`; `bench/replay.py` runs that very class beside these.
"""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a rule may look at before a round of BLOCK rows."""

    context: int
    """committed positions"""
    left: int
    """tokens that may still be emitted, at least 1"""
    log_odds: Tensor
    """[BLOCK - 1] float32: of the drafts"""
    router: Tensor
    """[BLOCK, k] int16: experts of each row at the first router"""
    survival: list[float]
    """S_1..S_(BLOCK-1), 0 from draft `left` on"""
    seconds: list[float]
    """T(1..BLOCK) at this context by the latency table"""
    true_seconds: list[float]
    """the same by the experts of this very block: only oracles look at it"""

    @property
    def expected(self) -> list[float]:
        """A(1..BLOCK)."""
        tokens = [1.0]
        for chance in self.survival:
            tokens.append(tokens[-1] + chance)
        return tokens


class Alternative(Protocol):
    """A rule over one run of texts."""

    def begin(self) -> None:
        """A new text."""
        ...

    def rows(self, look: Look) -> int:
        """Rows to read, 1..BLOCK; 0: a plain step without a draft."""
        ...

    def see(self, look: Look, rows: int, tokens: int) -> None:
        """What came of it: rows that were read and tokens that were emitted."""
        ...


@dataclass(slots=True)
class Always:
    """The same number of rows every round; 0: plain decoding."""

    count: int

    def begin(self) -> None:
        """Nothing to forget."""

    def rows(self, look: Look) -> int:
        """The number."""
        return self.count

    def see(self, look: Look, rows: int, tokens: int) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class Threshold:
    """Every draft that survives with more than a chance that was set beforehand."""

    least: float

    def begin(self) -> None:
        """Nothing to forget."""

    def rows(self, look: Look) -> int:
        """1 + drafts with S_j > least; S never rises."""
        return 1 + sum(chance > self.least for chance in look.survival)

    def see(self, look: Look, rows: int, tokens: int) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class MovingAverage:
    """One draft more than were accepted lately, by an exponential average."""

    share: float = 0.2
    """of the newest round"""
    accepted: float | None = None

    def begin(self) -> None:
        """The next text starts with the whole block."""
        self.accepted = None

    def rows(self, look: Look) -> int:
        """round(average) + 1 drafts."""
        block = len(look.seconds)
        return block if self.accepted is None else min(block, round(self.accepted) + 2)

    def see(self, look: Look, rows: int, tokens: int) -> None:
        """Move the average."""
        before = tokens - 1 if self.accepted is None else self.accepted
        self.accepted = before + self.share * (tokens - 1 - before)


@dataclass(slots=True)
class Ratio:
    """argmax_n A(n) / T(n), each round for itself; ties to the shorter."""

    def begin(self) -> None:
        """Nothing to forget."""

    def rows(self, look: Look) -> int:
        """The best n of this round alone."""
        pace = [a / t for a, t in zip(look.expected, look.seconds, strict=True)]
        return pace.index(max(pace)) + 1

    def see(self, look: Look, rows: int, tokens: int) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class TrueCost:
    """argmax_n A(n) - rate T(n) with the seconds that this very block will take.

    What a routing correction could gain if it knew the experts of every row in every layer.
    """

    memory: float
    """share of the past that a round leaves in the running rate"""
    tokens: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """Each text finds its own rate."""
        self.tokens = self.seconds = 0.0

    def rows(self, look: Look) -> int:
        """The best n at the running rate, which starts at the best ratio."""
        pairs = list(zip(look.expected, look.true_seconds, strict=True))
        if not self.seconds:
            self.tokens, self.seconds = max(pairs, key=lambda pair: pair[0] / pair[1])
        rate = self.tokens / self.seconds
        worth = [a - rate * t for a, t in pairs]
        return worth.index(max(worth)) + 1

    def see(self, look: Look, rows: int, tokens: int) -> None:
        """Keep the running rate."""
        self.tokens = self.memory * self.tokens + tokens
        self.seconds = self.memory * self.seconds + look.true_seconds[rows - 1]
