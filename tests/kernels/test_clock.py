# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What rounds take, and the table put right by it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridspec.kernels.reference import accept
from hybridspec.kernels.reference import clock as reference
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.clock import CLOCK_MEMORY, LARGEST_RATIO, Clock
from hybridspec.kernels.reference.length import LengthState
from tests.kernels.gdn_cases import ON_CUDA, counts, interpreted
from tests.kernels.learning_cases import teach

BLOCK = 8
TABLE = torch.linspace(1e-3, 4e-3, BLOCK)


def learnt(ratios):
    """A clock after rounds of (rows, ratio)."""
    clock = Clock.empty(BLOCK, "cpu")
    for rows, ratio in ratios:
        reference.learn_ratio(clock, rows, ratio)
    return clock


def test_without_rounds_the_table_stands():
    assert torch.equal(reference.refreshed(TABLE, learnt([])), TABLE)


def test_a_table_that_is_off_at_some_lengths_is_put_right_within_200_rounds():
    true = TABLE * torch.tensor([1, 1, 1, 1, 1.6, 1.6, 1.6, 1.6])
    taken = [1, 4, 5, 8]
    clock = learnt([(n, float(true[n - 1] / TABLE[n - 1])) for n in taken * 50])
    found = reference.refreshed(TABLE, clock)
    for n in taken:
        assert float(found[n - 1]) == pytest.approx(float(true[n - 1]), rel=0.1)


def test_a_length_that_was_not_taken_has_the_mean_of_the_others():
    found = reference.refreshed(TABLE, learnt([(3, 1.5)] * 400))
    assert torch.allclose(found, 1.5 * TABLE, rtol=0.05)


def test_what_changed_is_followed_and_what_was_is_forgotten():
    clock = learnt([(4, 2.0)] * 300 + [(4, 0.8)] * 200)
    assert float(reference.refreshed(TABLE, clock)[3]) == pytest.approx(
        0.8 * float(TABLE[3]), rel=0.05
    )
    assert float(clock.weights[3]) == pytest.approx(1 / (1 - CLOCK_MEMORY), rel=0.01)


@pytest.mark.parametrize(
    "ratio", [math.nan, math.inf, -1.0, 0.0, LARGEST_RATIO, 1 / LARGEST_RATIO, 1e9]
)
def test_what_cannot_be_a_round_is_not_learnt(ratio):
    clock = learnt([(2, 1.25)] * 3)
    before = [x.clone() for x in (clock.ratios, clock.weights)]
    reference.learn_ratio(clock, 2, ratio)
    assert all(
        torch.equal(a, b) for a, b in zip(before, (clock.ratios, clock.weights), strict=True)
    )


ROUNDS = st.lists(st.tuples(st.integers(1, BLOCK), st.floats(0.25, 5.0, width=32)), max_size=40)


@given(ROUNDS, st.lists(st.floats(2**-13, 1.0, width=32), min_size=BLOCK, max_size=BLOCK))
def test_more_rows_never_cost_less(ratios, seconds):
    found = reference.refreshed(torch.tensor(sorted(seconds)), learnt(ratios))
    assert (found.diff() >= 0).all()
    assert (found > 0).all()


def test_a_round_is_timed_from_its_beginning_to_its_last_row(monkeypatch):
    clock = Clock.empty(BLOCK, "cpu")
    clock.expected.copy_(TABLE)
    now = iter([5_000_000_000, 7_000_000_000])
    monkeypatch.setattr(reference.time, "perf_counter_ns", lambda: next(now))
    reference.begin(clock)
    reference.observe(clock, counts(BLOCK, "cpu"), torch.tensor(5_006_000_000))
    assert float(clock.ratios[-1]) == pytest.approx(1.5)
    assert float(clock.weights.sum()) == 1
    assert float(clock.taken) == pytest.approx(6e-3)
    assert int(clock.begun) == 0
    reference.observe(clock, counts(2, "cpu"), torch.tensor(6_000_000_000))  # none is under way
    assert float(clock.taken) == 0
    reference.begin(clock)
    reference.observe(clock, counts(0, "cpu"), torch.tensor(7_006_000_000))  # the text has ended
    assert float(clock.weights.sum()) == 1


def test_settling_notes_the_time(monkeypatch):
    tokens, one = torch.zeros(BLOCK, dtype=torch.int64), counts(1, "cpu")
    ledger = Ledger.opened(tokens[0], length=one.clone(), budget=1, slots=1)
    monkeypatch.setattr(accept.time, "perf_counter_ns", lambda: 123_456_789_012)
    accept.settle(tokens, tokens, one, tokens[:0], ledger)
    assert int(ledger.settled) == 123_456_789_012


@interpreted
@given(ROUNDS, st.integers(0, BLOCK), st.floats(0, 0.999))
def test_the_kernel_learns_what_the_reference_does(ratios, rows, seconds):
    from hybridspec.kernels import clock as kernels

    ours, theirs = learnt(ratios), learnt(ratios)
    for by, clock in ((kernels, ours), (reference, theirs)):
        clock.expected.copy_(TABLE)
        teach(by, rows, LengthState.empty(BLOCK, "cpu"), seconds=seconds, clock=clock)
        assert int(clock.begun) == 0
    for name in ("taken", "ratios", "weights"):
        assert torch.allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-5), name


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
def test_a_captured_round_is_timed_by_the_device(device, dtype):
    """A pause of the stream, beside events around it."""
    from hybridspec.kernels import accept, learning
    from hybridspec.kernels import clock as kernels

    clock, rows = Clock.empty(BLOCK, device), counts(3, device)
    state, odds = LengthState.empty(BLOCK, device), torch.zeros(BLOCK - 1, device=device)
    tokens = torch.zeros(BLOCK, dtype=torch.int64, device=device)
    ledger = Ledger.opened(tokens[0], length=counts(0, device), budget=99, slots=1)
    clock.expected.fill_(1e-3)

    def run():
        kernels.begin(clock)
        torch.cuda._sleep(2_000_000)
        accept.settle(tokens, tokens, rows, tokens[:0], ledger)
        learning.learn(odds, rows, rows, ledger, state, None, clock, None)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    clock.ratios.zero_()
    clock.weights.zero_()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    assert float(clock.weights[2]) == 1
    assert float(clock.ratios[2]) == pytest.approx(start.elapsed_time(end), rel=0.1)


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=interpreted, id="interpreted"),
        pytest.param("cuda", marks=pytest.mark.gpu, id="cuda"),
    ],
)
@given(ROUNDS, st.lists(st.floats(-6, 6, width=32), min_size=BLOCK - 1, max_size=BLOCK - 1))
def test_the_length_is_chosen_by_what_rounds_took(device, ratios, odds):
    """The kernel's seconds are the reference's, and its rows the best by brute force."""
    from hybridspec.kernels import length as kernels
    from hybridspec.kernels.reference import length
    from hybridspec.kernels.reference.length import LengthTables

    def run(by, device):
        known = learnt(ratios)
        clock = Clock(**{name: getattr(known, name).to(device) for name in Clock.__slots__})
        tables = LengthTables(
            slope=torch.tensor(1.0, device=device),
            intercepts=torch.zeros(BLOCK - 1, device=device),
            contexts=counts([64], device),
            seconds=TABLE[None].to(device),
            clock=clock,
        )
        state = LengthState.empty(BLOCK, device)
        own, done = torch.tensor(odds, device=device), torch.tensor(False, device=device)
        rows, _ = by.choose(own, tables, state, counts(64, device), counts(99, device), done)
        assert torch.equal(clock.expected.cpu(), TABLE)
        return int(rows), state

    rows, state = run(kernels, device)
    _, wanted = run(length, "cpu")
    assert torch.allclose(state.costs.cpu(), wanted.costs, rtol=1e-5)
    assert torch.allclose(state.costs.cpu(), reference.refreshed(TABLE, learnt(ratios)), rtol=1e-5)
    expected = torch.cat((torch.ones(1), 1 + state.survival.cpu().cumsum(0))).double()
    gain = expected - float(state.tokens / state.seconds) * state.costs.cpu().double()
    assert float(gain[rows - 1]) == pytest.approx(float(gain.max()), abs=1e-5)
