# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a row costs beyond those chosen.

The first router has seen the extra row before any expert ran. From the experts that it would add
there, `kernels/reference/length.py` guesses what it adds in all layers, prices them, and compares
with the tokens that the row promises.
"""

from dataclasses import dataclass

from hybridspec.core.errors import TableError


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingCosts:
    """Prices of a row, in the order in which `correct` reads them."""

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
