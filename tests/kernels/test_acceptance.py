# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Acceptance that learns: what counts as a label, and what comes of many."""

from dataclasses import fields

import pytest
import torch

from hybridspec.kernels.reference.acceptance import (
    EXPLORED_SHARE,
    LARGEST_STEP,
    WARM_UP,
    AcceptanceState,
    adapt,
)

CPU = torch.device("cpu")
DRAFTS = 7
COSTS = torch.arange(1, DRAFTS + 2) / 7
LEARNT = ("slope", "intercepts", "residual", "served", "curve", "gap", "weight", "labels")


def count(value):
    return torch.tensor(value, dtype=torch.int32)


def begun(slope=1.0, intercept=0.0, warm_up=0):
    return AcceptanceState.begun(slope, (intercept,) * DRAFTS, warm_up=warm_up, device=CPU)


def step(state, odds, *, chosen=DRAFTS + 1, rows=None, committed=1, is_done=False, costs=COSTS):
    rows = chosen if rows is None else rows
    done = torch.tensor(is_done)
    adapt(odds, count(chosen), count(rows), count(committed), done, count(0), costs, state)


def simulate(state, rounds, *, slope, intercepts, seed=0, mean=1.0, spread=2.0, rows=DRAFTS + 1):
    """Rounds of a drafter whose drafts are right with sigmoid(slope f + intercept)."""
    gen = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        odds = torch.randn(DRAFTS, generator=gen) * spread + mean
        chance = torch.sigmoid(slope * odds + torch.as_tensor(intercepts))
        right = (torch.rand(DRAFTS, generator=gen) < chance)[: rows - 1]
        step(state, odds, chosen=rows, committed=int(right.int().cumprod(0).sum()) + 1)


def labels_of(state):
    """[label, draft] of what was learnt."""
    return state.labels[1].sum(-1).tolist()


@pytest.mark.parametrize("accepted", range(DRAFTS + 1))
def test_labels_end_with_the_first_rejection(accepted):
    state = begun()
    step(state, torch.zeros(DRAFTS), committed=accepted + 1)
    wrong, right = labels_of(state)
    assert right == [int(j < accepted) for j in range(DRAFTS)]
    assert wrong == [int(j == accepted) for j in range(DRAFTS)]


def test_where_the_text_ended_only_accepted_drafts_have_labels():
    state = begun()
    step(state, torch.zeros(DRAFTS), committed=3, is_done=True)
    assert labels_of(state) == [[0] * DRAFTS, [1, 1] + [0] * (DRAFTS - 2)]
    assert int(state.judged) == 0


def test_a_row_that_the_correction_added_has_no_label():
    state = begun()
    step(state, torch.zeros(DRAFTS), chosen=3, rows=4, committed=4)
    assert labels_of(state) == [[0] * DRAFTS, [1, 1] + [0] * (DRAFTS - 2)]
    step(state, torch.zeros(DRAFTS), chosen=5, rows=3, committed=3)
    assert labels_of(state) == [[0] * DRAFTS, [2, 2] + [0] * (DRAFTS - 2)]


@pytest.mark.parametrize("odds", [torch.nan, torch.inf, -torch.inf])
def test_log_odds_that_are_no_number_bring_no_label(odds):
    state = begun()
    step(state, torch.full((DRAFTS,), odds), committed=4)
    assert labels_of(state) == [[0] * DRAFTS] * 2
    assert float(state.slope) == 1.0
    assert not state.intercepts.any()


def test_after_the_end_nothing_is_written():
    state, untouched = begun(warm_up=5), begun(warm_up=5)
    step(state, torch.ones(DRAFTS), committed=0, is_done=True)
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, getattr(untouched, field.name))
    assert float(state.exploration.purse) == 0


@pytest.mark.parametrize("odds", [0.0, 1.0, -1.0, 1e4, -1e4])
@pytest.mark.parametrize("committed", [1, DRAFTS + 1])
def test_equal_and_extreme_log_odds_keep_all_finite(odds, committed):
    """Where all log-odds are the same, slope and intercepts are not told apart but by the prior."""
    state = begun()
    for _ in range(400):
        step(state, torch.full((DRAFTS,), odds), committed=committed)
    for name in LEARNT:
        assert getattr(state, name).isfinite().all()
    served = torch.sigmoid(state.slope * max(min(odds, 20), -20) + state.served)
    first = float(served[0])
    assert first > 0.9 if committed > 1 else first < 0.1


def test_one_round_moves_no_coefficient_far():
    state = begun()
    step(state, torch.full((DRAFTS,), 20.0), committed=1)
    assert abs(float(state.slope) - 1) <= LARGEST_STEP
    assert state.intercepts.abs().max() <= LARGEST_STEP


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("slope", "intercepts"),
    [(0.6, [1.2, 0.9, 0.6, 0.4, 0.2, 0.1, 0.0]), (1.4, [0.5] * DRAFTS), (0.9, [-0.5] * DRAFTS)],
)
def test_coefficients_are_recovered_from_rounds(slope, intercepts, seed):
    """In mean chance over log-odds as they come, from coefficients that were loaded wrong."""
    state = begun(slope=1.0, intercept=0.3)
    simulate(state, 1500, slope=slope, intercepts=intercepts, seed=seed)
    odds = torch.randn(4000, 1, generator=torch.Generator().manual_seed(9)) * 2 + 1
    found = torch.sigmoid(state.slope * odds + state.intercepts)
    wanted = torch.sigmoid(slope * odds + torch.tensor(intercepts))
    assert (found - wanted)[:, :3].abs().mean() < 0.06
    assert float(state.slope) == pytest.approx(slope, abs=0.3)


def test_what_was_loaded_stands_where_nothing_is_seen():
    state = begun(intercept=0.7)
    simulate(state, 500, slope=1.0, intercepts=0.7, rows=3)
    assert torch.allclose(state.intercepts[2:], torch.tensor(0.7), atol=1e-3)


def test_a_request_leaves_no_residual_behind():
    state = begun()
    simulate(state, 30, slope=1.0, intercepts=-2.0)
    assert float(state.residual) < 0
    assert torch.equal(state.served, state.intercepts + state.residual)
    learnt = state.intercepts.clone()
    state.reset()
    assert float(state.residual) == 0
    assert torch.equal(state.served, learnt)
    assert int(state.exploration.reached) == -1


@pytest.mark.parametrize(("intercept", "is_off"), [(0.0, False), (0.4, False), (2.5, True)])
def test_where_chances_are_off_nothing_is_trimmed_until_they_are_not(intercept, is_off):
    """More than 5 % off within 60 rounds; learnt, and trusted again, within 200 more."""
    state, distrusted = begun(), 0
    for number in range(60):
        simulate(state, 1, slope=1.0, intercepts=intercept, seed=number)
        distrusted += int(state.distrusted)
        assert int(state.exploration.whole) == int(state.distrusted)
    assert (distrusted > 10) == is_off
    simulate(state, 200, slope=1.0, intercepts=intercept, seed=99)
    assert int(state.exploration.whole) == 0


def test_a_drafter_that_turns_bad_is_followed_within_200_rounds():
    """True chance falls from 0.82 to 0.12 in the middle of a run."""
    state = begun()
    simulate(state, 600, slope=0.0, intercepts=1.5)
    simulate(state, 200, slope=0.0, intercepts=-2.0, seed=1)
    odds = torch.randn(4000, generator=torch.Generator().manual_seed(9)) * 2 + 1
    assert torch.sigmoid(state.slope * odds + state.served[0]).mean() < 0.12 + 0.08
    assert int(state.distrusted) == 0


def test_warm_up_reads_whole_blocks_for_32_rounds():
    state = begun(warm_up=WARM_UP)
    for _ in range(WARM_UP):
        assert int(state.exploration.whole) == 1
        simulate(state, 1, slope=1.0, intercepts=0.0)
    assert int(state.warm_up) == 0
    assert int(state.exploration.whole) == int(state.distrusted)


def test_the_purse_fills_by_half_a_percent_of_the_time_and_holds_one_block():
    state = begun()
    for number in range(1, 50):
        step(state, torch.zeros(DRAFTS), chosen=3)
        filled = number * EXPLORED_SHARE * float(COSTS[2])
        assert float(state.exploration.purse) == pytest.approx(filled, rel=1e-4)
    for _ in range(1000):
        step(state, torch.zeros(DRAFTS), chosen=3)
    assert float(state.exploration.purse) == pytest.approx(float(COSTS[-1]))
