# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How many rows to read: the most tokens for the time, at the going rate.

A(n) = 1 + S_1 + ... + S_(n-1) tokens are expected of n rows. Tokens per second over a run is a
ratio of sums, so a second is priced at the run's own rate (Dinkelbach). Every number is in a tensor
that the next round finds where this one left it. What a reader gets wrong: the cost is a staircase,
so the search looks at every n and never stops at the first descent.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.kernels.reference.clock import Clock, refreshed
from hybridspec.kernels.reference.exploration import Exploration, explore

RATE_MEMORY = 0.98
"""share of the past that a round leaves in the running rate: about 50 rounds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTables:
    """What was measured; BLOCK is the block's size, 1..16. Rounds read it."""

    slope: Tensor
    """[] float32: of the log-odds, at least 0"""
    intercepts: Tensor
    """[BLOCK - 1] float32: one a draft position"""
    contexts: Tensor
    """[C] int32, rising: where seconds were measured"""
    seconds: Tensor
    """[C, BLOCK] float32, above 0: of drafting and verifying 1, 2, ... rows"""
    kappa: float = 1.0
    """price of a second, in units of the run's own rate"""
    above: int = 0
    """rows beyond those chosen that the first router is shown"""
    clock: Clock | None = None
    """how long rounds really took, by which the seconds are put right; None: as they are"""
    exploration: Exploration | None = None
    """what labels may cost; None: no row is read for its label"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthState:
    """What the policy keeps of one request, on the device; rounds write it in place."""

    tokens: Tensor
    """[] float32: emitted, older rounds for less"""
    seconds: Tensor
    """[] float32: likewise, by the table; 0 before the first round"""
    survival: Tensor
    """[BLOCK - 1] float32: of this round's drafts"""
    costs: Tensor
    """[BLOCK] float32: seconds of 1, 2, ... rows at this round's context"""

    @classmethod
    def empty(cls, block: int, device: torch.device | str) -> "LengthState":
        """Before the first round."""

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float32, device=device)

        return cls(
            tokens=zeros(),
            seconds=zeros(),
            survival=zeros(block - 1),
            costs=zeros(block),
        )

    def reset(self) -> None:
        """As before the first round, in place."""
        for tensor in (self.tokens, self.seconds, self.survival, self.costs):
            tensor.zero_()


def survival(log_odds: Tensor, slope: Tensor, intercepts: Tensor, budget: Tensor) -> Tensor:
    """S_j, the chance that draft j is reached, right, and may still be emitted.

    log_odds, intercepts [drafts] float32; slope [] float32; budget [] int32
    returns [drafts] float32: 0 from draft `budget` on, and from a draft whose log-odds are NaN
    """
    alone = torch.sigmoid(slope * log_odds + intercepts).nan_to_num(nan=0.0)
    place = torch.arange(1, len(log_odds) + 1, device=log_odds.device)
    return torch.where(place < budget, alone.cumprod(0), 0.0)


def seconds_at(contexts: Tensor, seconds: Tensor, length: Tensor) -> Tensor:
    """T(1..BLOCK) at a context: linear between measured contexts, flat outside. [BLOCK]."""
    place = int((contexts <= length).sum())
    low, high = max(place - 1, 0), min(place, len(contexts) - 1)
    if low == high:
        return seconds[low]
    span = (contexts[high] - contexts[low]).to(seconds.dtype)
    share = (length - contexts[low]).to(seconds.dtype) / span
    return seconds[low] + share * (seconds[high] - seconds[low])


def expected_tokens(survival: Tensor) -> Tensor:
    """A(1..BLOCK) of S_1..S_(BLOCK-1): [BLOCK - 1] -> [BLOCK] float32."""
    return torch.cat((survival.new_ones(1), 1 + survival.cumsum(0)))


def best_length(expected: Tensor, seconds: Tensor, rate: Tensor) -> Tensor:
    """argmax_n A(n) - rate T(n), ties to the shorter: [] int32, 1..BLOCK.

    expected, seconds [BLOCK] float32; rate [] float32, in tokens a second
    """
    return (expected - rate * seconds).argmax().to(torch.int32) + 1


def price_of_a_second(tables: LengthTables, state: LengthState) -> Tensor:
    """kappa lambda, tokens for a second: [] float32."""
    return tables.kappa * (state.tokens / state.seconds)


def choose(
    log_odds: Tensor,
    tables: LengthTables,
    state: LengthState,
    length: Tensor,
    budget: Tensor,
    is_done: Tensor,
) -> tuple[Tensor, Tensor]:
    """n* = argmax_n A(n) - kappa lambda T(n), ties to the shorter, and how many rows to show.

    log_odds [BLOCK - 1] float32   of the drafts
    length   []          int32     committed positions, the context
    budget   []          int32     tokens that may still be emitted
    is_done  []          bool      the text has ended: 0 rows, and nothing is written
    rows     []          int32     1..BLOCK
    shown    []          int32     rows to show the first router: `above` more, as far as the
                                   block goes
    Where labels are wanted, the rows are more than n*: `explore`.
    Leaves survival and costs in the state; the first round starts the rate at max_n A(n) / T(n).
    """
    if bool(is_done):
        none = torch.zeros_like(length)
        return none, none
    state.survival.copy_(survival(log_odds, tables.slope, tables.intercepts, budget))
    seconds = seconds_at(tables.contexts, tables.seconds, length)
    if tables.clock is not None:
        tables.clock.expected.copy_(seconds)
        seconds = refreshed(seconds, tables.clock)
    state.costs.copy_(seconds)
    expected = expected_tokens(state.survival)
    if not float(state.seconds) > 0:
        best = (expected / state.costs).argmax()
        state.tokens.copy_(expected[best])
        state.seconds.copy_(state.costs[best])
    rows = best_length(expected, state.costs, price_of_a_second(tables, state))
    if tables.exploration is not None:
        rows = explore(rows, state.costs, tables.exploration, length, budget)
    return rows, (rows + tables.above).clamp_max(len(expected)) if tables.above else rows


def learn(rows: Tensor, committed: Tensor, state: LengthState) -> None:
    """Keep the running rate, a ratio of sums, in the table's seconds.

    rows      [] int32   read to the end
    committed [] int32   tokens that the round emitted; 0 after the end, when nothing is learnt
    """
    if int(committed) < 1:
        return
    state.tokens.mul_(RATE_MEMORY).add_(committed)
    state.seconds.mul_(RATE_MEMORY).add_(state.costs[int(rows) - 1])
