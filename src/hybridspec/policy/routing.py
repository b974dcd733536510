# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What rows and experts cost, and what the first router says of the others.

The first router has seen more rows than were chosen before any expert ran. From the experts that
these have there, `kernels/reference/correction.py` puts right what each length will take.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from hybridspec.core.errors import TableError
from hybridspec.core.options import CorrectionName
from hybridspec.kernels.reference.correction import Correction

REACH = {"one": (0, 1), "window": (2, 2)}
"""rows fewer and more than chosen that a correction may read"""
DEFAULT: CorrectionName = "one"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingCosts:
    """Prices as they were measured."""

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

    @property
    def per_first_expert(self) -> float:
        """Seconds of one expert more at the first router, with those that it promises elsewhere."""
        return self.seconds_per_expert * (1 + (self.layers - 1) * self.correlation)

    @classmethod
    def fitted(
        cls, seconds: Tensor, fetched: Tensor, *, of_text: int | None = None
    ) -> "RoutingCosts":
        """From blocks that were read in every length, by least squares.

        seconds [R, BLOCK]           of a round with 1, 2, ... rows of each of R blocks
        fetched [R, BLOCK, routers]  distinct experts of each layer with a router
        of_text                      blocks that are text, which come first; None: all. The others
                                     say nothing of the correlation
        """
        fetched = fetched.double()
        experts = fetched.sum(-1)
        rows = torch.arange(1, seconds.shape[1] + 1).expand_as(experts).double()
        per_row, per_expert = _prices(rows, experts, seconds.double())
        new = fetched[:of_text].diff(dim=1)
        return cls(
            seconds_per_row=per_row,
            seconds_per_expert=per_expert,
            layers=fetched.shape[2],
            correlation=correlation(new[..., 0], new[..., 1:]),
        )


def correction_of(
    name: CorrectionName | None, routing: RoutingCosts | None, device: torch.device
) -> Correction | None:
    """A correction that has seen no round; None where it is off, or experts have no price.

    name: None is the default.
    """
    if name == "off" or routing is None:
        return None
    below, above = REACH[name or DEFAULT]
    return Correction.empty(below=below, above=above, price=routing.per_first_expert, device=device)


def correlation(first: Tensor, others: Tensor) -> float:
    """s, 0..1: experts new to another layer for one new to the first beyond the mean of its rows.

    first [R, N], others [R, N, routers - 1] float64: experts that rows 2, 3, ... N + 1 add
    """
    if not others.shape[2]:
        return 0.0
    first, each = first - first.mean(0), others.mean(2)
    spread = float(first.square().sum())
    slope = float((first * (each - each.mean(0))).sum()) / spread if spread else 0.0
    return min(max(slope, 0.0), 1.0)


def _prices(rows: Tensor, experts: Tensor, seconds: Tensor) -> tuple[float, float]:
    """Seconds of a row and of an expert beside what a round costs anyhow, none below 0."""
    fits = list[tuple[float, float, float]]()
    for is_row, is_expert in ((1, 1), (0, 1), (1, 0), (0, 0)):
        columns = torch.stack((torch.ones_like(rows), is_row * rows, is_expert * experts), dim=-1)
        columns = columns.reshape(-1, 3)
        inverse = cast("Tensor", torch.linalg.pinv(columns))
        found = inverse @ seconds.reshape(-1)
        missed = float((columns @ found - seconds.reshape(-1)).square().sum())
        # a column of zeros may be given a number that is not quite 0
        fits.append((missed, is_row * float(found[1]), is_expert * float(found[2])))
    _, per_row, per_expert = min(fit for fit in fits if min(fit[1:]) >= 0)
    return per_row, per_expert
