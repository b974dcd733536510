# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What one round teaches, of which a test names what matters to it."""

import torch

from hybridspec.kernels import learning as kernels
from hybridspec.kernels.reference import learning as reference
from hybridspec.kernels.reference.accept import Ledger
from tests.kernels.gdn_cases import counts

BEGUN = 1_000_000_000


def teach(
    by,
    rows,
    state,
    *,
    odds=None,
    chosen=None,
    committed=0,
    is_done=False,
    length=0,
    seconds=0.0,
    acceptance=None,
    clock=None,
    correction=None,
):
    """By the launch or by the reference, as the module `by` is one or the other.

    seconds: that the round took, if there is a clock. Counts are numbers.
    """
    device, block = state.costs.device, state.costs.numel()
    ledger = Ledger.closed(length=counts(length, device), slots=1)
    ledger.committed.fill_(committed)
    ledger.is_done.fill_(is_done)
    ledger.settled.fill_(BEGUN + round(seconds * 1e9))
    if clock is not None:
        clock.begun.fill_(BEGUN)
    odds = torch.zeros(block - 1) if odds is None else odds
    counted = [counts(x, device) for x in (rows if chosen is None else chosen, rows)]
    learn = reference.learn if "reference" in by.__name__ else kernels.learn
    learn(odds.to(device), *counted, ledger, state, acceptance, clock, correction)
