# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How well chances fit what came of them: by the loaded coefficients and by what was learnt.

Both are judged on the same rounds, each label before it was learnt from. What a reader gets wrong:
a position's chances are given that the drafts before it were right, the calibration error is of
survivals, by which lengths are chosen.
"""

from dataclasses import asdict, dataclass
from typing import cast

from torch import Tensor

from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.policy.acceptance import Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One set of coefficients."""

    calibration_error: float | None
    """|mean survival - share that survived|, over 16 bins by survivals in them; None: none yet"""
    auc: tuple[float | None, ...]
    """by draft: chance that a right one had more log-odds than a wrong one, to within one of 16
    bins of chances; None where there were not both"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReport:
    """What was learnt of a pair's drafts since the LLM was made."""

    labels: int
    """drafts whose verdict was learnt from"""
    survivals: int
    """that were judged"""
    loaded: Judged
    learnt: Judged
    slope: float
    intercepts: tuple[float, ...]
    reads_whole_blocks: bool
    """in warm-up, or while the calibration error lately was above 5 %"""
    rounds_explored: int
    """rounds with rows beyond n*, read for their labels"""
    seconds_explored: float
    """what these took by the latency table: at most 0.5 % of drafted rounds"""

    @classmethod
    def of(cls, state: AcceptanceState) -> "AcceptanceReport":
        """Waits for the device."""
        labels, survivals = state.labels.cpu(), state.survivals.cpu()
        loaded, learnt = (
            Judged(
                calibration_error=calibration_error(survivals[which], int(state.judged)),
                auc=tuple(area(own[0], own[1]) for own in labels[which].transpose(0, 1)),
            )
            for which in range(2)
        )
        found = learnt_by(state)
        return cls(
            labels=labels_of(state),
            survivals=int(state.judged),
            loaded=loaded,
            learnt=learnt,
            slope=found.slope,
            intercepts=found.intercepts,
            reads_whole_blocks=bool(state.exploration.whole),
            rounds_explored=int(state.exploration.explored),
            seconds_explored=float(state.exploration.spent),
        )

    def to_json(self) -> dict[str, object]:
        """As `bench decode --json` has it."""
        return asdict(self)


def learnt_by(state: AcceptanceState) -> Acceptance:
    """The coefficients as they stand, without the request's residual. Waits for the device."""
    intercepts = cast("list[float]", state.intercepts.tolist())
    return Acceptance(slope=float(state.slope), intercepts=tuple(intercepts))


def labels_of(state: AcceptanceState) -> int:
    """How many labels were learnt from. Waits for the device."""
    return int(state.labels[1].sum())


def calibration_error(survivals: Tensor, judged: int) -> float | None:
    """survivals [2, BINS] float32: by bin, sums of the chances and of what came of them."""
    if not judged:
        return None
    return float((survivals[0] - survivals[1]).abs().sum()) / judged


def area(wrong: Tensor, right: Tensor) -> float | None:
    """Area under the curve of two histograms [BINS] by rising chance; of one bin, half."""
    pairs = float(wrong.sum()) * float(right.sum())
    if not pairs:
        return None
    below = wrong.double().cumsum(0) - wrong / 2
    return float((right * below).sum()) / pairs
