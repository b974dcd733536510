# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The choice put right by the first router: which of the lengths around n* its experts favour.

Every row is cheap up to that router, so rows beyond n* are shown to it too. T(n, c) holds for the
mean number of distinct experts of n rows; where this block's first rows have more or fewer than
that, their time is put right by a price for each:

    T^(m) = T(m, c) + price (U(m) - mean U(m)),    m = n* - below .. n* + above

and the best of A(m) - kappa lambda T^(m) is read. below = 0 and above = 1 is the one extra row of
arXiv 2611.04055. The price stands for all that an expert more at the first router tells of the
others: c_e (1 + (layers - 1) s) of its formula, regressed as one number from what rounds took.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.clock import Clock
from hybridspec.kernels.reference.length import (
    LengthState,
    LengthTables,
    expected_tokens,
    price_of_a_second,
)

UNION_MEMORY = 0.98
"""share of the past that a round leaves in the mean number of experts: about 50 rounds"""
PRICE_MEMORY = 0.99
"""share of it that a round leaves in the regression: about 100 rounds"""
PRIOR_SQUARES = 50.0
"""squares of experts beyond the mean for which the price measured beforehand stands"""
LARGEST_MISS = 0.25
"""share of a round's expected time beyond which the price does not answer for what it took"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What is known of the first router; rounds write the tensors in place."""

    below: int
    """rows fewer than chosen that may be read"""
    above: int
    """rows more"""
    prior: Tensor
    """[] float32: the price as measured beforehand; 0: not measured"""
    price: Tensor
    """[] float32, at least 0: seconds of one expert beyond the mean at the first router"""
    products: Tensor
    """[] float32: of experts beyond the mean and seconds beyond the expected, older for less"""
    squares: Tensor
    """[] float32: of experts beyond the mean, likewise"""
    seen: Tensor
    """[16] float32: how often 1, 2, ... rows were shown, older for less"""
    experts: Tensor
    """[16] float32: distinct experts that they had, likewise"""
    beyond: Tensor
    """[] float32: experts beyond the mean of the rows that this round reads"""
    kept: Tensor
    """[] int32: rows read beyond those chosen"""
    dropped: Tensor
    """[] int32: rows shown to the router and not read"""

    @classmethod
    def empty(
        cls, *, below: int, above: int, price: float = 0.0, device: torch.device | str
    ) -> "Correction":
        """Before the first round; price: as measured beforehand, 0 if it was not."""

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            below=below,
            above=above,
            prior=zeros() + price,
            price=zeros() + price,
            products=zeros(),
            squares=zeros(),
            seen=zeros(MAX_ROWS),
            experts=zeros(MAX_ROWS),
            beyond=zeros(),
            kept=zeros(dtype=torch.int32),
            dropped=zeros(dtype=torch.int32),
        )


def unions(expert_ids: Tensor) -> Tensor:
    """Distinct experts of the first 1, 2, ... rows: [N, k] int -> [N] float32."""
    earlier = [expert_ids[:row] for row in range(len(expert_ids))]
    new = [(~torch.isin(own, known)).sum() for own, known in zip(expert_ids, earlier, strict=True)]
    return torch.stack(new).cumsum(0).float()


def correct(
    expert_ids: Tensor,
    rows: Tensor,
    shown: Tensor,
    tables: LengthTables,
    state: LengthState,
    correction: Correction,
) -> Tensor:
    """argmax_m A(m) - kappa lambda T^(m), ties to the shorter.

    A number of rows that is shown for the first time has the mean that it brings. A round whose
    rows are read for their labels (`exploration.asked`) keeps them: n* as it came.

    expert_ids [N, k]  int32 or int64   at the first router, distinct in a row; stale from row
                                        `shown` on
    rows       []      int32            n*, as chosen
    shown      []      int32            n* + above, as far as the block goes; 0 after the end
    returns    []      int32            rows to read on: n* - below .. shown, at least 1
    """
    n, most = int(rows), int(shown)
    if most < 1:
        return rows
    own, seen, experts = (
        unions(expert_ids[:most]),
        correction.seen[:most],
        correction.experts[:most],
    )
    beyond = own - torch.where(seen > 0, experts / seen, own)
    seconds = state.costs[:most] + correction.price * beyond
    gain = expected_tokens(state.survival)[:most] - price_of_a_second(tables, state) * seconds
    is_asked = tables.exploration is not None and bool(tables.exploration.asked)
    first, last = (n, n) if is_asked else (max(n - correction.below, 1), most)
    best = first - 1 + int(gain[first - 1 : last].argmax())
    seen.mul_(UNION_MEMORY).add_(1)
    experts.mul_(UNION_MEMORY).add_(own)
    correction.beyond.copy_(beyond[best])
    correction.kept.add_(max(best + 1 - n, 0))
    correction.dropped.add_(most - best - 1)
    return torch.full_like(rows, best + 1)


def learn_price(correction: Correction, rows: Tensor, clock: Clock, state: LengthState) -> None:
    """What the clock saw of this round of `rows` [] int32, beside what was expected of it."""
    taken = float(clock.taken)
    if not taken > 0:
        return
    expected = float(state.costs[int(rows) - 1])
    most = LARGEST_MISS * expected
    missed = min(max(taken - expected, -most), most)
    beyond = correction.beyond
    correction.products.mul_(PRICE_MEMORY).add_(beyond * missed)
    correction.squares.mul_(PRICE_MEMORY).add_(beyond * beyond)
    sums = correction.products + PRIOR_SQUARES * correction.prior
    correction.price.copy_((sums / (correction.squares + PRIOR_SQUARES)).clamp_min(0))
