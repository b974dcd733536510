# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from hybridspec.kernels import acceptance as kernels
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import acceptance as reference
from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.kernels.reference.length import LengthState
from tests.kernels.gdn_cases import interpreted
from tests.kernels.learning_cases import teach

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICES = [
    pytest.param("cpu", marks=interpreted, id="interpreted"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="cuda"),
]


def begun(drafts, device):
    """From 0.3 a cut step and a cut residual lead to 0, and a chance on the border of two bins."""
    state = AcceptanceState.begun(0.8, (0.317,) * drafts, warm_up=3, device=torch.device(device))
    state.exploration.trial.fill_(2)
    return state


def parts(state):
    """Every tensor by name, those of the exploration included."""
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, torch.Tensor):
            yield field.name, value
        else:
            yield from parts(value)


def adapt(by, state, odds, chosen, rows, committed, is_done=False, length=0):
    """One round whose rows cost a seventh of a second each."""
    rate = LengthState.empty(len(odds) + 1, state.slope.device)
    rate.costs.copy_(torch.arange(1, len(odds) + 2) / 7)
    teach(
        by,
        rows,
        rate,
        odds=odds,
        chosen=chosen,
        committed=committed,
        is_done=is_done,
        length=length,
        acceptance=state,
    )


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=15)
@given(data=st.data(), drafts=st.sampled_from([1, 7, 15]), seed=st.integers(0, 2**16))
def test_rounds_are_learnt_from_as_in_the_reference(device, data, drafts, seed):
    """Some log-odds are no numbers, texts end, routing keeps a row, rounds come after the end."""
    gen = torch.Generator().manual_seed(seed)
    ours, wanted = begun(drafts, device), begun(drafts, "cpu")
    for number in range(12):
        odds = torch.randn(drafts, generator=gen) * 3
        odds[data.draw(st.integers(0, drafts - 1))] = data.draw(
            st.sampled_from([0.0, 40.0, -40.0, torch.nan, torch.inf, -torch.inf])
        )
        chosen = data.draw(st.integers(1, drafts + 1))
        rows = min(chosen + data.draw(st.integers(0, 1)), drafts + 1)
        round_ = (odds, chosen, rows, data.draw(st.integers(0, rows)), data.draw(st.booleans()))
        adapt(kernels, ours, *round_, number)
        adapt(reference, wanted, *round_, number)
    for (name, a), (_, b) in zip(parts(ours), parts(wanted), strict=True):
        assert a.dtype == b.dtype
        assert torch.allclose(a.cpu().double(), b.double(), atol=2e-4, rtol=2e-5), name


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused_by_name(device):
    state, odds = begun(7, device), torch.zeros(7)
    for name in ("served", "curve", "gap", "labels", "judged"):
        with pytest.raises(ShapeError, match=name):
            adapt(kernels, replace(state, **{name: getattr(state, name)[None]}), odds, 2, 2, 1)
    with pytest.raises(ShapeError, match="log_odds"):
        adapt(kernels, state, odds.double(), 2, 2, 1)
