# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What policy hybrid carries from one text to the next: its tables, and what rounds taught it."""

from dataclasses import dataclass, field, replace

from hybridspec.core.options import CorrectionName
from hybridspec.engine.learning import Learning
from hybridspec.engine.measure import after_tokens, measure, measure_routing
from hybridspec.engine.round import Rounds
from hybridspec.engine.tables import Tables
from hybridspec.kernels.reference.clock import Clock
from hybridspec.kernels.reference.correction import Correction
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.drafting import Drafting
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Hybrid
from hybridspec.policy.routing import correction_of

BLOCKS = 4
"""blocks that price experts where no table is known; `hybridspec profile` takes more"""


@dataclass(slots=True, kw_only=True)
class Experience:
    """One for all texts of an LLM; rounds write learning, clock and correction on the device."""

    tables: Tables
    correction: CorrectionName | None
    acceptance: Acceptance
    """as it was loaded"""
    latency: Latency | None
    """None before it is measured"""
    learning: Learning | None
    """None beside a table that the user names: a run repeats itself"""
    clock: Clock | None
    """None beside a latency table that the user names: it is taken at its word"""
    drafting: Drafting = field(default_factory=Drafting)
    _seen: Correction | None = None
    """what the first router told, once experts have a price"""

    @classmethod
    def begun(
        cls,
        tables: Tables,
        correction: CorrectionName | None,
        acceptance: Acceptance | None = None,
    ) -> "Experience":
        """Before the first text; acceptance: loaded before, so that it is not looked for again."""
        latency, is_named = tables.latency(), tables.named_latency is not None
        acceptance = acceptance or tables.acceptance()
        return cls(
            tables=tables,
            correction=correction,
            acceptance=acceptance,
            latency=latency,
            learning=Learning.begun(acceptance, tables) if tables.learns else None,
            clock=None if is_named else Clock.empty(tables.pair.block_size, tables.device),
        )

    def policy(self, rounds: Rounds, prompt_ids: list[int]) -> Hybrid:
        """For rounds that have read this prompt; latency is measured there if no table is known."""
        if self.latency is None:
            self.latency = self._measured(rounds, prompt_ids)
            self.tables.keep(self.latency)
        device, routing = self.tables.device, self.latency.routing
        self._seen = self._seen or correction_of(self.correction, routing, device)
        return Hybrid(
            acceptance=self.acceptance,
            latency=self.latency,
            correction=self._seen,
            drafting=self.drafting,
            clock=self.clock,
            learning=None if self.learning is None else self.learning.state.of_text(),
            device=device,
        )

    def _measured(self, rounds: Rounds, prompt_ids: list[int]) -> Latency:
        block_size = self.tables.pair.block_size
        latency = measure(rounds, block_size)
        moves = after_tokens(rounds, prompt_ids, BLOCKS)
        return replace(latency, routing=measure_routing(rounds, block_size, moves))

    def keep(self) -> None:
        """Write what was learnt for the next run; waits for the device."""
        if self.learning is not None:
            self.learning.keep()
