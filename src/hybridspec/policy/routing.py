# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Whether one row more earns the experts that it would fetch.

The first router has seen the extra row before any expert ran. From the experts that it would add
there, guess what it adds in all layers, price them, and compare with the tokens that the row
promises.
"""

from dataclasses import dataclass, field

from torch import Tensor

from hybridspec.kernels.reference.router import new_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingCosts:
    """Prices of a row."""

    seconds_per_row: float
    """tau_row: time of a row that adds no expert"""
    seconds_per_expert: float
    """c_e: time of one distinct expert of one layer"""
    layers: int
    """layers with a router"""
    correlation: float
    """s: what one new expert beyond the mean at the first router says of every other layer; 0..1"""


@dataclass(slots=True)
class NewExperts:
    """Running mean of the experts that row n + 1 adds at the first router, by n."""

    counts: dict[int, int] = field(default_factory=dict[int, int])
    totals: dict[int, int] = field(default_factory=dict[int, int])

    def mean(self, rows: int, default: float) -> float:
        """Mean over what was seen with so many rows; `default` before anything was."""
        return self.totals[rows] / self.counts[rows] if rows in self.counts else default

    def see(self, rows: int, new: int) -> None:
        """Take in one observation."""
        self.counts[rows] = self.counts.get(rows, 0) + 1
        self.totals[rows] = self.totals.get(rows, 0) + new


def extra_seconds(new: int, mean: float, costs: RoutingCosts) -> float:
    """dT of the extra row: tau_row + c_e [d0 + (N - 1) (g + s (d0 - g))].

    d0 = `new` experts at the first router; g = their `mean`, which stands for the other layers as
    well until they are counted
    """
    others = mean + costs.correlation * (new - mean)
    fetched = new + (costs.layers - 1) * max(others, 0.0)
    return costs.seconds_per_row + costs.seconds_per_expert * fetched


def count_new(expert_ids: Tensor, rows: int) -> int:
    """d0: experts that row `rows + 1` chose and no earlier row did. expert_ids [W, k] int64."""
    return new_experts(expert_ids, rows)
