# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Whether one row more earns the experts that it would fetch.

The first router has seen the extra row before any expert ran. From the experts that it would add
there, guess what it adds in all layers, price them, and compare with the tokens that the row
promises.
"""

from dataclasses import dataclass, field

from hybridspec.core.errors import TableError


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
    """s: what one new expert beyond the mean at the first router says of every other layer"""

    def __post_init__(self) -> None:
        if not 0 <= self.correlation <= 1:
            raise TableError(f"correlation must lie between 0 and 1, got {self.correlation}.")


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
    """dT of the extra row: tau_row + c_e [d0 + (layers - 1) (g + s (d0 - g))].

    d0 = `new` experts at the first router; g = their `mean`, which stands for the other layers as
    well until they are counted
    """
    others = mean + costs.correlation * (new - mean)
    fetched = new + (costs.layers - 1) * others
    return costs.seconds_per_row + costs.seconds_per_expert * fetched
