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
    prices: list[float] | None = None
    tokens: float = 0.0
    spent: float = 0.0
    survival: list[float] = field(default_factory=list[float])
    costs: list[float] = field(default_factory=list[float])
    added: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """experts that extra rows added, by rows chosen before them"""
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
        return rows, rows if self.prices is None else min(rows + 1, len(gains))

    def correct(self, ids: list[list[int]], rows: int, shown: int) -> int:
        if shown == rows:
            return rows
        new = len(set(ids[rows]) - {expert for row in ids[:rows] for expert in row})
        seen = self.added.setdefault(rows, [])
        mean = sum(seen) / len(seen) if seen else new
        seen.append(new)
        keeps = self.survival[rows - 1] > self.rate * extra_by_hand(new, mean, self.prices)
        self.kept, self.dropped = self.kept + keeps, self.dropped + (not keeps)
        return rows + keeps

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


def extra_by_hand(new: float, mean: float, prices: list[float]) -> float:
    per_row, per_expert, layers, correlation = prices
    elsewhere = mean + correlation * (new - mean)
    return per_row + per_expert * (new + (layers - 1) * elsewhere)
