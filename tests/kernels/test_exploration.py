# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rows beyond n* that are read to be learnt from, and what they may cost."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from hybridspec.kernels import correction as corrections
from hybridspec.kernels import length as kernels
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import correction as correction_reference
from hybridspec.kernels.reference import length as reference
from hybridspec.kernels.reference.correction import Correction
from hybridspec.kernels.reference.exploration import EXPLORED_ROWS, TRIAL, Exploration
from hybridspec.kernels.reference.length import LengthState, LengthTables
from tests.kernels.gdn_cases import counts, interpreted

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

BLOCK = 8
DEVICES = [
    pytest.param("cpu", marks=interpreted, id="interpreted"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="cuda"),
]
BY = pytest.mark.parametrize("by", [kernels, reference], ids=["kernel", "reference"])
COSTS = [1.0, 1.0, 1.5, 1.5, 2.25, 2.25, 2.25, 4.0]


def scene(device, *, intercept=0.0, purse=0.0):
    """Drafts of one chance, at one token a second."""
    exploration = Exploration.empty(device)
    exploration.purse.fill_(purse)
    tables = LengthTables(
        slope=torch.zeros((), device=device),
        intercepts=torch.full((BLOCK - 1,), intercept, device=device),
        contexts=counts([0], device),
        seconds=torch.tensor([COSTS], device=device),
        exploration=exploration,
    )
    state = LengthState.empty(BLOCK, device)
    state.tokens.fill_(1.0)
    state.seconds.fill_(1.0)
    return tables, state, exploration


def choose(by, tables, state, length=0, budget=99, is_done=False):
    device = state.costs.device
    done = torch.tensor(is_done, device=device)
    odds = torch.zeros(BLOCK - 1, device=device)
    rows, _ = by.choose(odds, tables, state, counts(length, device), counts(budget, device), done)
    return int(rows)


def same(one, other):
    return all(
        torch.allclose(getattr(one, f.name).cpu().double(), getattr(other, f.name).double())
        for f in fields(one)
    )


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40)
@given(data=st.data())
def test_rounds_explore_as_in_the_reference(device, data):
    draw, sides = data.draw, []
    intercept, purse = draw(st.sampled_from([-9.0, 0.3, 2.0, 9.0])), draw(st.floats(0, 2))
    whole, trial = draw(st.integers(0, 1)), draw(st.integers(0, 2))
    for place in (device, "cpu"):
        sides.append(scene(place, intercept=intercept, purse=purse))
        sides[-1][2].whole.fill_(whole)
        sides[-1][2].trial.fill_(trial)
    for _ in range(4):
        behind = draw(st.sampled_from([-1, 5, 7]))
        where = {"budget": draw(st.integers(1, 12)), "is_done": draw(st.booleans())}
        found = []
        for by, (tables, state, exploration) in zip((kernels, reference), sides, strict=True):
            exploration.reached.fill_(behind)
            found.append(choose(by, tables, state, 5, **where))
        assert found[0] == found[1]
        assert same(sides[0][2], sides[1][2])


@BY
@pytest.mark.parametrize("device", DEVICES)
def test_without_money_nothing_is_explored_and_with_it_two_rows_more(device, by):
    tables, state, exploration = scene(device, intercept=0.3)
    n = choose(by, replace(tables, exploration=None), state)
    assert choose(by, tables, state) == n
    assert int(exploration.asked) == 0
    exploration.purse.fill_(10.0)
    assert choose(by, tables, state) == n + EXPLORED_ROWS
    cost = COSTS[n + EXPLORED_ROWS - 1] - COSTS[n - 1]
    assert float(exploration.spent) == pytest.approx(cost)
    assert float(exploration.purse) == pytest.approx(10.0 - cost)
    assert (int(exploration.explored), int(exploration.asked)) == (1, 1)


@BY
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("budget", [1, 2, 5, 8, 9])
def test_whole_blocks_end_at_the_budget_and_cost_the_purse_nothing(device, by, budget):
    tables, state, exploration = scene(device, intercept=-9.0, purse=1.0)
    exploration.whole.fill_(1)
    assert choose(by, tables, state, budget=budget) == min(budget, BLOCK)
    assert int(exploration.asked) == 1
    assert float(exploration.purse) == 1.0


@BY
@pytest.mark.parametrize("device", DEVICES)
def test_a_round_after_plain_ones_begins_a_trial(device, by):
    tables, state, exploration = scene(device, intercept=-9.0)
    n = choose(by, tables, state, length=3)
    exploration.reached.fill_(3)
    assert choose(by, tables, state, length=3) == n
    assert choose(by, tables, state, length=40) == n + EXPLORED_ROWS
    assert int(exploration.trial) == TRIAL
    assert float(exploration.spent) == 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("by", [corrections, correction_reference], ids=["kernel", "reference"])
def test_no_correction_takes_back_what_was_asked_for(device, by, asked):
    """Rows of no worth: a window drops them, unless they are read for their labels."""
    tables, state, exploration = scene(device)
    exploration.asked.fill_(asked)
    state.costs.copy_(torch.tensor(COSTS, device=device))
    known = Correction.empty(below=2, above=2, device=device)
    ids = torch.arange(BLOCK, device=device)[:, None]
    read = by.correct(ids, counts(5, device), counts(7, device), tables, state, known)
    assert int(read) == (5 if asked else 3)
    assert float(known.seen.sum()) == 7
    assert int(known.dropped) == (2 if asked else 4)
    assert int(known.kept) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused_by_name(device):
    tables, state, exploration = scene(device)
    wrong = replace(exploration, purse=exploration.purse.double())
    with pytest.raises(ShapeError, match="purse"):
        choose(kernels, replace(tables, exploration=wrong), state)
