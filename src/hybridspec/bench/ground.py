# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a replay stands on: a trace, and what each of its rounds would cost, by two clocks."""

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch

from hybridspec.bench.trace import Trace
from hybridspec.kernels.reference import length
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.alternatives import Look
from hybridspec.policy.latency import Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a round: step + draft + row n + expert U, U over all layers."""

    step: float
    draft: float
    """none in a plain step"""
    row: float
    expert: float

    @classmethod
    def of_35b(cls, trace: Trace) -> "Costs":
        """Bytes of the 35B-A3B shape at 4.0 TB/s: 3.88 GB a step, 1.88 GB a draft, experts.

        An expert of the trace stands for as many of that shape as make a row's 40 layers of 8.
        """
        experts = trace.experts.shape[2] * trace.experts.shape[3]
        return cls(step=0.97e-3, draft=0.47e-3, row=0.0, expert=40 * 8 * 1.57e-6 / experts)


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A trace, and what its rounds cost."""

    trace: Trace
    acceptance: Acceptance
    costs: Costs
    latency: Latency | None = None
    """None: the cost model's own means"""

    @cached_property
    def table(self) -> Latency:
        """The table that rules choose by."""
        if self.latency is not None:
            return self.latency
        means = [sum(row) / len(row) for row in zip(*self.modelled, strict=True)]
        plain = sum(row[0] for row in self.modelled) / len(self.modelled) - self.costs.draft
        return Latency.measured({0: means}, plain={0: plain})

    @cached_property
    def modelled(self) -> list[list[float]]:
        """[P][BLOCK]: seconds of a drafted round of 1, 2, ... rows by the cost model."""
        costs, rows = self.costs, torch.arange(1, self.trace.block_size + 1)
        fixed = costs.step + costs.draft + costs.row * rows.double()
        seconds = fixed + costs.expert * self.trace.unions().double()
        return cast("list[list[float]]", seconds.tolist())

    @cached_property
    def survival(self) -> list[list[float]]:
        """[P][BLOCK - 1]: S_j by the acceptance table, as the engine computes it."""
        slope = torch.tensor(self.acceptance.slope)
        intercepts = torch.tensor(self.acceptance.intercepts)
        every = torch.tensor(self.trace.block_size)
        return [
            length.survival(odds, slope, intercepts, every).tolist() for odds in self.trace.log_odds
        ]

    @cached_property
    def drafted(self) -> dict[int, list[float]]:
        """By context: T(1..BLOCK) by the table; filled as it is asked for."""
        return {}

    def drafted_at(self, context: int) -> list[float]:
        """T(1..BLOCK) at a context by the table."""
        if context not in self.drafted:
            rows = range(1, self.trace.block_size + 1)
            self.drafted[context] = [self.table.drafted_at(context, rows=n) for n in rows]
        return self.drafted[context]

    def look(self, text: int, begin: int, place: int) -> Look:
        """What a rule sees at a position."""
        left = int(self.trace.budgets[text]) - (place - begin)
        context = int(self.trace.prompts[text]) + place - begin
        chances = self.survival[place]
        return Look(
            context=context,
            left=left,
            log_odds=self.trace.log_odds[place],
            router=self.trace.experts[place, :, 0].contiguous(),
            survival=[s if j < left else 0.0 for j, s in enumerate(chances, 1)],
            seconds=self.drafted_at(context),
            true_seconds=self.modelled[place],
        )

    def seconds(self, context: int, place: int, rows: int) -> tuple[float, float]:
        """By the table and by the cost model; rows 0: a plain step."""
        if rows:
            return self.drafted_at(context)[rows - 1], self.modelled[place][rows - 1]
        plain = self.modelled[place][0] - self.costs.draft
        return self.table.plain_at(context), plain
