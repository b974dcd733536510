# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The parts of one launch: each learns what it learns alone, and a part left out learns nothing.

What each makes of a round is tested with its kind.
"""

from dataclasses import fields, replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.kernels import learning as kernels
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import learning as reference
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.kernels.reference.clock import Clock
from hybridspec.kernels.reference.correction import Correction
from hybridspec.kernels.reference.length import LengthState
from tests.kernels.gdn_cases import counts, interpreted
from tests.kernels.learning_cases import teach

BLOCK = 8
PARTS = ("acceptance", "clock", "correction")
DEVICES = [
    pytest.param("cpu", marks=interpreted, id="interpreted"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="cuda"),
]


class Taught:
    """All that rounds write, after a few of them that were taught in the parts that are named."""

    def __init__(self, by, device, parts, rounds=12):
        self.state = LengthState.empty(BLOCK, device)
        self.state.costs.copy_(torch.linspace(1.0, 2.0, BLOCK))
        self.acceptance = AcceptanceState.begun(
            1.0, (0.3,) * (BLOCK - 1), warm_up=2, device=torch.device(device)
        )
        self.clock = Clock.empty(BLOCK, device)
        self.clock.expected.copy_(self.state.costs)
        self.correction = Correction.empty(below=0, above=1, price=0.05, device=device)
        gen = torch.Generator().manual_seed(0)
        for number in range(rounds):
            rows = 1 + number % BLOCK
            self.correction.beyond.fill_(number % 5 - 2.0)
            teach(
                by,
                rows,
                self.state,
                odds=torch.randn(BLOCK - 1, generator=gen),
                committed=1 + number % rows,
                length=10 * number,
                seconds=1.0 + 0.1 * number,
                **{name: getattr(self, name) for name in parts},
            )

    def numbers(self):
        """Every tensor by its name, by the record that holds it."""
        for name in ("state", *PARTS):
            yield name, dict(tensors(getattr(self, name)))


def tensors(record):
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            yield field.name, value.cpu().double()
        elif hasattr(value, "__dataclass_fields__"):
            yield from tensors(value)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "parts", [(), PARTS[:1], PARTS[1:2], PARTS[1:], PARTS], ids=lambda x: "+".join(x) or "rate"
)
def test_each_part_learns_as_in_the_reference_and_no_other_does(device, parts):
    found, wanted = Taught(kernels, device, parts), Taught(reference, "cpu", parts)
    fresh = Taught(reference, "cpu", (), rounds=0)
    for (name, ours), (_, theirs), (_, before) in zip(
        found.numbers(), wanted.numbers(), fresh.numbers(), strict=True
    ):
        assert ours.keys() == theirs.keys()
        for of, x in ours.items():
            assert torch.allclose(x, theirs[of], atol=2e-4, rtol=2e-5), (name, of)
        changed = {of for of, x in ours.items() if not torch.equal(x, before[of])}
        changed.discard("beyond")  # the test itself writes it
        if name == "correction":
            assert bool(changed) == (parts[-2:] == PARTS[1:])  # with a clock alone
        else:
            assert bool(changed) == (name == "state" or name in parts)


@pytest.mark.parametrize("device", DEVICES)
def test_without_a_clock_no_price_is_learnt(device):
    found = Taught(kernels, device, ("correction",))
    assert float(found.correction.squares) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused_by_name(device):
    one, state = counts(1, device), LengthState.empty(BLOCK, device)
    odds = torch.zeros(BLOCK - 1, device=device)
    ledger = Ledger.closed(length=one.clone(), slots=1)
    rest = (None, None, None)
    short = AcceptanceState.begun(1.0, (0.0,) * 3, warm_up=0, device=torch.device(device))
    for name, arguments in {
        "log_odds": (odds[:-1], one, one, ledger, state, *rest),
        "chosen": (odds, one.long(), one, ledger, state, *rest),
        "rows": (odds, one, one[None], ledger, state, *rest),
        "committed": (odds, one, one, replace(ledger, committed=one.long()), state, *rest),
        "settled": (odds, one, one, replace(ledger, settled=one), state, *rest),
        "is_done": (odds, one, one, replace(ledger, is_done=one), state, *rest),
        "costs": (odds, one, one, ledger, replace(state, costs=state.costs.double()), *rest),
        "expected": (odds, one, one, ledger, state, None, Clock.empty(4, device), None),
        "intercepts": (odds, one, one, ledger, state, short, None, None),
    }.items():
        with pytest.raises(ShapeError, match=name):
            kernels.learn(*arguments)
