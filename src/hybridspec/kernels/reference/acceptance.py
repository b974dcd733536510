# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Acceptance that learns: coefficients refit after every round, where the round left its tensors.

p_j = sigmoid(slope f_j + intercept_j + residual), f_j the log-odds of draft j. One Newton step a
round on the likelihood of all labels so far, older rounds for less, with a Gaussian prior at the
loaded coefficients. One slope is shared and each label belongs to one intercept, so the Hessian is
an arrow and its step takes O(block) work without a matrix. Where the last step ended, the past's
gradient and the prior's cancel; forgetting a share of the past leaves that share of the prior's,
hence the factor (1 - memory) in it.

What a reader gets wrong: the fit leaves the request's residual out, since the coefficients outlive
it; what is judged (calibration, histograms) is what `choose` went by, residual included.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridspec.kernels.reference.exploration import Exploration

MEMORY, MEMORY_IF_OFF = 0.99, 0.95
"""share of the past that a round with labels leaves in the fit: about 100 rounds, and about 20
while what it says is not to be trusted"""
PRIOR_SLOPE, PRIOR_INTERCEPT = 0.5, 0.03
"""precision of the prior; a label weighs p (1 - p) on an intercept, f^2 as much on the slope"""
BELIEF_SLOPE, BELIEF_INTERCEPT = 20.0, 5.0
"""what loaded coefficients weigh beside it at first; forgotten as labels are"""
LARGEST_ODDS, LARGEST_STEP = 20.0, 0.25
"""log-odds are cut to the first; no coefficient moves further than the second in a round"""
RESIDUAL_MEMORY, RESIDUAL_STEP = 0.9, 0.05
JUDGED = 0.98
"""share of the past that a round leaves in the calibration error: about 50 rounds"""
TRUSTED, RESUMED, LEAST_JUDGED = 0.05, 0.04, 100.0
"""calibration error above which nothing is trimmed, and below which it is again; judged from so
many survivals on"""
EXPLORED_SHARE = 0.005
"""of the time of drafted rounds may go into rows that are read to be learnt from"""
WARM_UP = 32
"""drafted rounds of whole blocks where no coefficients exist"""
BINS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceState:
    """What is learnt of a pair, on the device; G = BLOCK - 1 drafts. Rounds write it in place."""

    slope: Tensor
    """[] float32, at least 0"""
    intercepts: Tensor
    """[G] float32"""
    residual: Tensor
    """[] float32, within +-1: of one text"""
    served: Tensor
    """[G] float32: intercepts + residual, which `choose` reads; of one text"""
    prior_slope: Tensor
    """[] float32: as loaded"""
    prior_intercepts: Tensor
    """[G] float32: as loaded"""
    curve_slope: Tensor
    """[] float32: the Hessian's corner, without the prior"""
    curve_cross: Tensor
    """[G] float32: its edge"""
    curve: Tensor
    """[G] float32: its diagonal"""
    gap: Tensor
    """[BINS] float32: sum of S - y by S, older rounds for less"""
    spread: Tensor
    """[BINS] float32: sum of the squares of each round's part of it"""
    weight: Tensor
    """[] float32: how many survivals are in these"""
    distrusted: Tensor
    """[] int32: 1 while the calibration error is too large"""
    warm_up: Tensor
    """[] int32: rounds of it to come"""
    exploration: Exploration
    """what labels may cost"""
    labels: Tensor
    """[2, 2, G, BINS] int32: by (loaded, learnt), label, draft and p"""
    survivals: Tensor
    """[2, 2, BINS] float32: sums of (S, y) by (loaded, learnt) and S"""
    judged: Tensor
    """[] int32: how many survivals are in these"""

    @classmethod
    def begun(
        cls, slope: float, intercepts: tuple[float, ...], *, warm_up: int, device: torch.device
    ) -> "AcceptanceState":
        """Nothing learnt beyond the loaded coefficients; warm_up: 0, or WARM_UP without any."""
        drafts = len(intercepts)

        def floats(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float32, device=device)

        def count(value: int = 0) -> Tensor:
            return torch.tensor(value, dtype=torch.int32, device=device)

        belief = 0.0 if warm_up else 1.0
        exploration = Exploration.empty(device)
        exploration.whole.fill_(int(warm_up > 0))
        return cls(
            slope=floats(slope),
            intercepts=floats(intercepts),
            residual=zeros(),
            served=floats(intercepts),
            prior_slope=floats(slope),
            prior_intercepts=floats(intercepts),
            curve_slope=floats(belief * BELIEF_SLOPE),
            curve_cross=zeros(drafts),
            curve=floats([belief * BELIEF_INTERCEPT] * drafts),
            gap=zeros(BINS),
            spread=zeros(BINS),
            weight=zeros(),
            distrusted=count(),
            warm_up=count(warm_up),
            exploration=exploration,
            labels=torch.zeros((2, 2, drafts, BINS), dtype=torch.int32, device=device),
            survivals=zeros(2, 2, BINS),
            judged=count(),
        )

    def of_text(self) -> "AcceptanceState":
        """The same for a text of its own: what is learnt is shared, what belongs to one is not."""
        return replace(
            self,
            residual=torch.zeros_like(self.residual),
            served=self.intercepts.clone(),
            exploration=self.exploration.of_text(),
        )

    def reset(self) -> None:
        """Another text begins: residual and positions belong to one alone, all else goes on."""
        self.residual.zero_()
        self.exploration.reached.fill_(-1)
        self.served.copy_(self.intercepts)


def adapt(
    log_odds: Tensor,
    chosen: Tensor,
    rows: Tensor,
    committed: Tensor,
    is_done: Tensor,
    length: Tensor,
    costs: Tensor,
    state: AcceptanceState,
) -> None:
    """Labels of one round; the step of the fit, the judgement of it, and what may be explored.

    Draft j has a label if it was read by choice (j < chosen and j < rows: what routing kept has
    none) and the drafts before it were accepted; where the text ended, only what was accepted has.
    Drafts of NaN or infinite log-odds have none. After the end nothing is written.

    log_odds  [G] float32   of the drafts
    chosen    []  int32     rows that `choose` wanted
    rows      []  int32     rows that were read to the end
    committed []  int32     tokens emitted, 0 after the end
    is_done   []  bool      the text ended in this round
    length    []  int32     committed positions behind the round
    costs     [G + 1] float32   seconds of 1, 2, ... rows in this round
    """
    accepted, is_over = int(committed) - 1, bool(is_done)
    if accepted < 0:
        return
    read = min(int(chosen), int(rows)) - 1
    place = torch.arange(len(log_odds), device=log_odds.device)
    y = (place < accepted).to(state.slope.dtype)
    known = log_odds.isfinite()
    odds = torch.where(known, log_odds, 0.0).clamp(-LARGEST_ODDS, LARGEST_ODDS)
    labelled = known & (place < min(read, accepted if is_over else accepted + 1))
    by_loaded = torch.sigmoid(state.prior_slope * odds + state.prior_intercepts)
    served = torch.sigmoid(state.slope * odds + state.served)
    both = torch.stack((by_loaded, served))
    judged = 0 if is_over else int(known[:read].cumprod(0).sum())  # all before are known
    _count_labels(state, both, y, labelled)
    survival = both.cumprod(1)[:, :judged]
    _count_survivals(state, survival, y[:judged])
    _judge(state, survival[1] - y[:judged], _bins(survival[1]))
    _fit(state, odds, y, labelled)
    rest = torch.where(labelled, y - served, 0.0).sum()
    state.residual.mul_(RESIDUAL_MEMORY).add_(RESIDUAL_STEP * rest).clamp_(-1, 1)
    state.served.copy_(state.intercepts + state.residual)
    exploration = state.exploration
    saved = exploration.purse + EXPLORED_SHARE * costs[int(rows) - 1]
    exploration.purse.copy_(torch.minimum(saved, costs[-1]))
    exploration.reached.copy_(length)
    exploration.trial.sub_(1).clamp_min_(0)


def _bins(p: Tensor) -> Tensor:
    return (p * BINS).long().clamp_max(BINS - 1)


def _count_labels(state: AcceptanceState, p: Tensor, y: Tensor, labelled: Tensor) -> None:
    """p [2, G]: by the loaded coefficients and by the learnt ones."""
    drafts = labelled.nonzero().flatten()
    which = torch.arange(2, device=p.device)[:, None]
    cells = ((2 * which + y[drafts].long()) * len(y) + drafts) * BINS + _bins(p[:, drafts])
    cells = cells.flatten()
    state.labels.view(-1).index_add_(0, cells, torch.ones_like(cells, dtype=torch.int32))


def _count_survivals(state: AcceptanceState, survival: Tensor, y: Tensor) -> None:
    """survival [2, J] likewise, y [J]."""
    bins = _bins(survival)
    state.survivals[:, 0].scatter_add_(1, bins, survival)
    state.survivals[:, 1].scatter_add_(1, bins, y.expand_as(survival))
    state.judged.add_(len(y))


def _judge(state: AcceptanceState, error: Tensor, bins: Tensor) -> None:
    """The calibration error beyond one standard error of each bin; and whether to trim by it.

    error [J] float32: S - y; bins [J] int64: of S
    """
    here = torch.zeros_like(state.gap).index_add_(0, bins, error)
    left = JUDGED if len(error) else 1.0
    state.gap.mul_(left).add_(here)
    state.spread.mul_(left * left).add_(here * here)
    state.weight.mul_(left).add_(len(error))
    beyond = (state.gap.abs() - state.spread.sqrt()).clamp_min(0).sum()
    limit = torch.where(state.distrusted > 0, RESUMED, TRUSTED)
    is_off = (state.weight >= LEAST_JUDGED) & (beyond > limit * state.weight)
    state.distrusted.copy_(is_off)
    state.warm_up.sub_(1).clamp_min_(0)
    state.exploration.whole.copy_(is_off | (state.warm_up > 0))


def _fit(state: AcceptanceState, odds: Tensor, y: Tensor, labelled: Tensor) -> None:
    """One Newton step; the arrow is solved by its Schur complement, the rest by what it came to."""
    logit = state.slope * odds + state.intercepts
    p, missed = torch.sigmoid(logit), torch.sigmoid(-logit)  # 1 - p has few digits near certainty
    rest = torch.where(labelled, y - p, 0.0)
    weight = torch.where(labelled, p * missed, 0.0)
    memory = torch.where(state.distrusted > 0, MEMORY_IF_OFF, MEMORY)
    left = torch.where(labelled.any(), memory, 1.0)
    state.curve_slope.mul_(left).add_((weight * odds * odds).sum())
    state.curve_cross.mul_(left).add_(weight * odds)
    state.curve.mul_(left).add_(weight)
    pull = 1 - left
    of_slope = (rest * odds).sum() - pull * PRIOR_SLOPE * (state.slope - state.prior_slope)
    of_each = rest - pull * PRIOR_INTERCEPT * (state.intercepts - state.prior_intercepts)
    diagonal = state.curve + PRIOR_INTERCEPT
    cross = state.curve_cross
    corner = state.curve_slope + PRIOR_SLOPE - (cross * cross / diagonal).sum()
    step = (of_slope - (cross * of_each / diagonal).sum()) / corner.clamp_min(PRIOR_SLOPE)
    step = torch.maximum(step.clamp(-LARGEST_STEP, LARGEST_STEP), -state.slope)
    state.slope.add_(step)
    each = (of_each - cross * step) / diagonal
    state.intercepts.add_(each.clamp(-LARGEST_STEP, LARGEST_STEP))
