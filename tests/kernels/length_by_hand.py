# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The policy in Python's own numbers, one request, without a tensor: what the others must equal."""

import math
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

MEMORY = 0.98


@dataclass(kw_only=True)
class ByHand:
    """Slope 1, intercepts 0, kappa 1."""

    seconds: dict[int, list[float]]
    """by context"""
    reach: tuple[int, int] | None = None
    """rows fewer and more that the first router may bring; None: no correction"""
    price: float = 0.0
    """seconds of an expert beyond the mean there"""
    tokens: float = 0.0
    spent: float = 0.0
    survival: list[float] = field(default_factory=list[float])
    costs: list[float] = field(default_factory=list[float])
    seen: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    """by rows: how often they were shown and the experts that they had, older for less"""
    beyond: float = 0.0
    kept: int = 0
    dropped: int = 0

    def choose(self, log_odds: list[float], context: int, budget: int) -> tuple[int, int]:
        chances = [1 / (1 + math.exp(-x)) for x in log_odds]
        self.survival = [
            s if j + 1 < budget else 0.0 for j, s in enumerate(accumulate(chances, mul))
        ]
        self.costs = self._costs_at(context)
        expected = list(accumulate(self.survival, initial=1.0))
        if not self.spent:
            start = max(range(len(expected)), key=lambda i: expected[i] / self.costs[i])
            self.tokens, self.spent = expected[start], self.costs[start]
        gains = [a - self.rate * t for a, t in zip(expected, self.costs, strict=True)]
        rows = gains.index(max(gains)) + 1
        return rows, min(rows + (self.reach or (0, 0))[1], len(gains))

    def correct(self, ids: list[list[int]], rows: int, shown: int) -> int:
        if self.reach is None:
            return rows
        expected = list(accumulate(self.survival, initial=1.0))
        beyond, gains = dict[int, float](), dict[int, float]()
        for n in range(1, shown + 1):
            own = len({expert for row in ids[:n] for expert in row})
            times, experts = self.seen.get(n, (0.0, 0.0))
            beyond[n] = own - experts / times if times else 0.0
            self.seen[n] = MEMORY * times + 1, MEMORY * experts + own
            seconds = self.costs[n - 1] + self.price * beyond[n]
            gains[n] = expected[n - 1] - self.rate * seconds
        read = max(range(max(rows - self.reach[0], 1), shown + 1), key=lambda n: (gains[n], -n))
        self.beyond = beyond[read]
        self.kept, self.dropped = self.kept + max(read - rows, 0), self.dropped + shown - read
        return read

    def learn(self, rows: int, committed: int) -> None:
        self.tokens = MEMORY * self.tokens + committed
        self.spent = MEMORY * self.spent + self.costs[rows - 1]

    @property
    def rate(self) -> float:
        return self.tokens / self.spent

    def _costs_at(self, context: int) -> list[float]:
        contexts = sorted(self.seconds)
        context = min(max(context, contexts[0]), contexts[-1])
        low = max(c for c in contexts if c <= context)
        high = min(c for c in contexts if c >= context)
        share = (context - low) / (high - low) if high > low else 0.0
        pairs = zip(self.seconds[low], self.seconds[high], strict=True)
        return [a + share * (b - a) for a, b in pairs]
