# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Fixed and hybrid behind one interface; plain decoding drafts nothing and asks neither.

Before a round: does it draft? A drafted one then asks for survival of the drafts, rows to choose,
rows to show the first router, rows to keep after it, and tells at the end what came of it; a plain
one tells that it was. Counts are int32 scalars on the device.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hybridspec.core.records import Block, Routed, Verdict
from hybridspec.kernels.reference.router import new_experts
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.drafting import Drafting
from hybridspec.policy.latency import Latency
from hybridspec.policy.length import best_length, best_ratio
from hybridspec.policy.routing import NewExperts, RoutingCosts, extra_seconds

RATE_MEMORY = 0.98
"""share of the past that a round leaves in the running rate: about 50 rounds"""


class Policy(Protocol):
    """Whether each round of one request drafts, and how many rows it reads."""

    def wants_drafts(self, context: int, left: int) -> bool:
        """Whether the next round drafts; left: tokens that may still be emitted, at least 1."""
        ...

    def rest(self, context: int) -> None:
        """A plain round was taken."""
        ...

    def survival(self, block: Block) -> Tensor:
        """S_j of every draft: [block_size - 1] float32."""
        ...

    def choose(self, survival: Tensor, context: int) -> Tensor:
        """Rows worth reading, 1..block_size, before any was read."""
        ...

    def look_ahead(self, rows: Tensor) -> Tensor:
        """Rows to read up to the first router."""
        ...

    def correct(self, routed: Routed, survival: Tensor, rows: Tensor, shown: Tensor) -> Tensor:
        """Rows to read on, 1..shown."""
        ...

    def learn(self, rows: Tensor, verdict: Verdict) -> None:
        """What came of the round."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number of rows; at 1 the drafts are made and not read."""

    rows: int

    def wants_drafts(self, context: int, left: int) -> bool:
        """Always."""
        return True

    def rest(self, context: int) -> None:
        """Plain decoding, or a test's: nothing to keep."""

    def survival(self, block: Block) -> Tensor:
        """Not asked for: every draft is taken to survive."""
        return torch.ones_like(block.log_odds)

    def choose(self, survival: Tensor, context: int) -> Tensor:
        """The fixed number."""
        return torch.tensor(self.rows, dtype=torch.int32, device=survival.device)

    def look_ahead(self, rows: Tensor) -> Tensor:
        """No row more."""
        return rows

    def correct(self, routed: Routed, survival: Tensor, rows: Tensor, shown: Tensor) -> Tensor:
        """No row less."""
        return rows

    def learn(self, rows: Tensor, verdict: Verdict) -> None:
        """Nothing to learn."""


@dataclass(slots=True, kw_only=True)
class Hybrid:
    """Rows by expected tokens and measured time, then one more if the router finds it cheap."""

    acceptance: Acceptance
    latency: Latency
    routing: RoutingCosts | None = None
    """prices of the correction; None: not measured, and no row is shown beyond those chosen"""
    kappa: float = 1.0
    """price of a second, in units of the run's own rate"""
    drafting: Drafting = field(default_factory=Drafting)
    new_experts: NewExperts = field(default_factory=NewExperts)
    kept: int = 0
    """extra rows that the correction kept"""
    dropped: int = 0
    """extra rows that it dropped"""
    _tokens: float = 0.0
    _seconds: float = 0.0
    _costs: Tensor = field(default_factory=lambda: torch.empty(0))
    """T(1..block) at this round's context"""
    _plain_seconds: float = 0.0
    """of a plain step there"""

    def wants_drafts(self, context: int, left: int) -> bool:
        """While drafted rounds save time, and as a probe; not where none could, near the end."""
        if not self.drafting.wants_drafts():
            return False
        costs = self.latency.at(context)
        return left >= len(costs) or float(costs[left - 1]) < left * self.latency.plain_at(context)

    def rest(self, context: int) -> None:
        """Plain steps pay for probes."""
        self.drafting.see_plain(self.latency.plain_at(context))

    def survival(self, block: Block) -> Tensor:
        """From the drafter's log-odds."""
        return self.acceptance.survival(block.log_odds)

    def choose(self, survival: Tensor, context: int) -> Tensor:
        """n* = argmax_n A(n) - kappa lambda T(n, c) over all n, ties to the shorter."""
        self._costs = self.latency.at(context, survival.device)
        self._plain_seconds = self.latency.plain_at(context)
        if not self._seconds:
            self._tokens, self._seconds = best_ratio(survival, self._costs)
        return best_length(survival, self._costs, self._price())

    def look_ahead(self, rows: Tensor) -> Tensor:
        """One row more, as far as the block goes, if there are prices to judge it by."""
        if self.routing is None:
            return rows
        return (rows + 1).clamp_max(len(self._costs))

    def correct(self, routed: Routed, survival: Tensor, rows: Tensor, shown: Tensor) -> Tensor:
        """Keep the extra row iff S_(n*) > kappa lambda dT."""
        n = int(rows)
        if self.routing is None or int(shown) == n:
            return rows
        new = new_experts(routed.expert_ids, n)
        mean = self.new_experts.mean(n, default=float(new))
        self.new_experts.see(n, new)
        keeps = float(survival[n - 1]) > self._price() * extra_seconds(new, mean, self.routing)
        self.kept += keeps
        self.dropped += not keeps
        return rows + int(keeps)

    def learn(self, rows: Tensor, verdict: Verdict) -> None:
        """Keep the running rate: a ratio of sums, in the table's seconds: a run can be repeated."""
        tokens, seconds = int(verdict.accepted) + 1, float(self._costs[int(rows) - 1])
        self._tokens = RATE_MEMORY * self._tokens + tokens
        self._seconds = RATE_MEMORY * self._seconds + seconds
        self.drafting.see_drafted(tokens=tokens, seconds=seconds, plain_seconds=self._plain_seconds)

    def _price(self) -> float:
        return self.kappa * self._tokens / self._seconds
