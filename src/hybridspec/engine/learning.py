# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What an LLM learns of its drafts over texts, and when that is kept for the next run."""

from dataclasses import dataclass, field

from hybridspec.engine.tables import Tables
from hybridspec.kernels.reference.acceptance import WARM_UP, AcceptanceState
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.calibration import AcceptanceReport, labels_of, learnt_by


@dataclass(slots=True)
class Learning:
    """One for all texts of an LLM; rounds write the state."""

    tables: Tables
    state: AcceptanceState
    _labels_kept: int = field(default=0, init=False)
    _can_be_kept: bool = field(default=True, init=False)

    @classmethod
    def begun(cls, loaded: Acceptance, tables: Tables) -> "Learning":
        """Before the first text; whole blocks come first where there are no coefficients."""
        state = AcceptanceState.begun(
            loaded.slope,
            loaded.intercepts,
            warm_up=0 if loaded.is_informed else WARM_UP,
            device=tables.device,
        )
        return cls(tables, state)

    def report(self) -> AcceptanceReport:
        """What it came to. Waits for the device."""
        return AcceptanceReport.of(self.state)

    def keep(self) -> None:
        """Write what is new; waits for the device.

        Not what is not to be trusted: the next run would take it for known.
        """
        if not self._can_be_kept or bool(self.state.exploration.whole):
            return
        labels = labels_of(self.state)
        if labels > self._labels_kept:
            self._can_be_kept = self.tables.keep_acceptance(learnt_by(self.state))
            self._labels_kept = labels
