# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""All that a settled round teaches, in one call: its parts do not wait for each other."""

from torch import Tensor

from hybridspec.kernels.reference import length
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.acceptance import AcceptanceState, adapt
from hybridspec.kernels.reference.clock import Clock, observe
from hybridspec.kernels.reference.correction import Correction, learn_price
from hybridspec.kernels.reference.length import LengthState


def learn(
    log_odds: Tensor,
    chosen: Tensor,
    rows: Tensor,
    ledger: Ledger,
    state: LengthState,
    acceptance: AcceptanceState | None,
    clock: Clock | None,
    correction: Correction | None,
) -> None:
    """The run's rate; which drafts were right; how long it took; what an expert cost.

    A part that is None learns nothing, nor does a correction without a clock. The others are
    written in place. Of the ledger it reads committed, is_done, length and settled.

    log_odds [BLOCK - 1] float32   of the drafts
    chosen   []          int32     rows that `choose` wanted
    rows     []          int32     rows that were read to the end
    """
    committed, is_done = ledger.committed, ledger.is_done
    length.learn(rows, committed, state)
    if acceptance is not None:
        costs, end = state.costs, ledger.length
        adapt(log_odds, chosen, rows, committed, is_done, end, costs, acceptance)
    if clock is not None:
        observe(clock, rows, ledger.settled)
        if correction is not None:
            learn_price(correction, rows, clock, state)
