# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridspec.kernels.reference import length as reference
from hybridspec.kernels.reference.length import (
    LengthState,
    LengthTables,
    choose,
    expected_tokens,
)

# sixteenths: sums and products below are exact in float32, so that ties are ties
survivals = st.lists(st.integers(0, 16), min_size=1, max_size=15).map(
    lambda s: sorted(s, reverse=True)
)
steps = st.lists(st.integers(0, 8), min_size=16, max_size=16)


def sixteenths(values):
    return torch.tensor(values, dtype=torch.float32) / 16


def staircase(steps, rows):
    """A monotone table that starts above 0: flat wherever a step is 0."""
    total = 8
    return [total := total + step for step in steps[:rows]]


def gains(survival, seconds, rate):
    """A(n) - rate T(n) for n = 1, 2, ... in exact fractions."""
    tokens = Fraction(1)
    found = []
    for n, time in enumerate(seconds):
        tokens += Fraction(survival[n - 1], 16) if n else 0
        found.append(tokens - rate * Fraction(time, 16))
    return found


def best_length(survival, seconds, rate):
    """The reference on a survival, with the rate as a number."""
    return reference.best_length(expected_tokens(survival), seconds, torch.tensor(rate))


def count(value):
    return torch.tensor(value, dtype=torch.int32)


@settings(max_examples=400)
@given(survival=survivals, steps=steps, rate=st.integers(0, 8))
def test_the_best_length_is_that_of_a_search_over_all(survival, steps, rate):
    seconds = staircase(steps, len(survival) + 1)
    want = gains(survival, seconds, rate)
    found = best_length(sixteenths(survival), sixteenths(seconds), float(rate))
    assert found.dtype == torch.int32
    assert int(found) == want.index(max(want)) + 1  # the first of the best is the shortest


def test_ties_go_to_the_shorter():
    assert int(best_length(torch.ones(15), torch.arange(1.0, 17), 1.0)) == 1
    assert int(best_length(torch.zeros(15), torch.ones(16), 1.0)) == 1
    assert int(best_length(torch.tensor([1.0, 0.0, 0.0]), torch.ones(4), 1.0)) == 2


def test_the_search_does_not_stop_at_the_first_descent():
    seconds = torch.tensor([1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0])
    survival = torch.full((7,), 0.9)
    assert survival[0] < seconds[1] - seconds[0]  # the second row alone does not pay
    assert int(best_length(survival, seconds, 1.0)) == 8


def test_sure_drafts_are_read_and_hopeless_ones_are_not():
    seconds = torch.linspace(1.0, 1.5, 16)
    assert int(best_length(torch.ones(15), seconds, 1.0)) == 16
    assert int(best_length(torch.zeros(15), seconds, 1.0)) == 1


@given(survival=survivals)
def test_expected_tokens_count_the_targets_own(survival):
    want = [Fraction(16 + sum(survival[:n]), 16) for n in range(len(survival) + 1)]
    assert expected_tokens(sixteenths(survival)).tolist() == [float(x) for x in want]


@settings(max_examples=200)
@given(
    log_odds=st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=15),
    steps=steps,
    budget=st.integers(1, 20),
)
def test_the_starting_rate_is_the_best_ratio(log_odds, steps, budget):
    """It is that of the rows which the first round chooses."""
    seconds = torch.tensor([staircase(steps, len(log_odds) + 1)], dtype=torch.float32)
    tables = LengthTables(
        slope=torch.tensor(1.0),
        intercepts=torch.zeros(len(log_odds)),
        contexts=count([0]),
        seconds=seconds,
    )
    state = LengthState.empty(len(log_odds) + 1, "cpu")
    odds = torch.tensor(log_odds)
    choose(odds, tables, state, count(0), count(budget), torch.tensor(False))
    chances = torch.sigmoid(odds.double()).cumprod(0)
    chances[max(budget - 1, 0) :] = 0
    ratios = expected_tokens(chances) / seconds[0]
    assert float(state.tokens / state.seconds) == pytest.approx(float(ratios.max()), rel=1e-6)


@given(
    log_odds=st.lists(st.floats(-40, 40, width=32), min_size=3, max_size=3),
    slope=st.floats(0, 4),
    intercepts=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_survival_is_the_product_of_logistics(log_odds, slope, intercepts):
    found = reference.survival(
        torch.tensor(log_odds), torch.tensor(slope), torch.tensor(intercepts), count(9)
    )
    f = torch.tensor(log_odds, dtype=torch.float64)
    want = torch.sigmoid(slope * f + torch.tensor(intercepts, dtype=torch.float64)).cumprod(0)
    assert torch.allclose(found.double(), want, atol=1e-5)
    assert (found.diff() <= 0).all()
