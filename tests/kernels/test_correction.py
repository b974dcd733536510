# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The choice put right by the first router, and what an expert there turns out to cost."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from hybridspec.kernels import correction as kernels
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import correction as reference
from hybridspec.kernels.reference.clock import Clock
from hybridspec.kernels.reference.correction import PRIOR_SQUARES, Correction
from hybridspec.kernels.reference.length import LengthState, LengthTables, expected_tokens
from tests.kernels.gdn_cases import counts, interpreted
from tests.kernels.learning_cases import teach
from tests.kernels.length_by_hand import ByHand

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

BLOCK, ROWS, PRICE = 8, 16, 0.02
COSTS = [1.0, 1.1, 1.5, 1.6, 2.2, 2.3, 2.5, 4.0]
REACHES = [(0, 1), (2, 2), (1, 0)]
DEVICES = [
    pytest.param("cpu", marks=interpreted, id="interpreted"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="cuda"),
]
BY = pytest.mark.parametrize("by", [kernels, reference], ids=["kernel", "reference"])


def floats(values, device):
    return torch.tensor(values, dtype=torch.float32, device=device)


def scene(device, survival, reach, price=PRICE, block=BLOCK):
    """A request at 0.9 tokens a second, whose first router has a price."""
    tables = LengthTables(
        slope=floats(1.0, device),
        intercepts=floats([0.0] * (block - 1), device),
        contexts=counts([0], device),
        seconds=floats([COSTS[:block]], device),
        above=reach[1],
    )
    state = LengthState.empty(block, device)
    state.survival.copy_(floats(survival, device))
    state.costs.copy_(floats(COSTS[:block], device))
    state.tokens.fill_(9.0)
    state.seconds.fill_(10.0)
    correction = Correction.empty(below=reach[0], above=reach[1], price=price, device=device)
    return tables, state, correction


def by_hand(survival, reach, price=PRICE):
    hand = ByHand(seconds={0: COSTS}, reach=reach, price=price, tokens=9.0, spent=10.0)
    hand.survival, hand.costs = list(survival), list(COSTS)
    return hand


def is_clear(hand, ids, rows, shown):
    """No two lengths are so close that float32 could take the other."""
    twin = ByHand(**{name: getattr(hand, name) for name in ("seconds", "reach", "price")})
    twin.tokens, twin.spent, twin.seen = hand.tokens, hand.spent, dict(hand.seen)
    twin.survival, twin.costs = hand.survival, hand.costs
    best = twin.correct(ids, rows, shown)
    for shift in (-1e-5, 1e-5):
        other = ByHand(seconds=hand.seconds, reach=hand.reach, price=hand.price)
        other.tokens, other.spent, other.seen = hand.tokens, hand.spent, dict(hand.seen)
        other.survival = hand.survival
        other.costs = [c + shift * n for n, c in enumerate(hand.costs)]
        if other.correct(ids, rows, shown) != best:
            return False
    return True


@BY
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40)
@given(data=st.data(), k=st.sampled_from([1, 3, 8, 10]), is_long=st.booleans())
def test_rounds_equal_those_by_hand(device, by, data, k, is_long):
    """Ids beyond the rows shown are stale; experts are few, so that many are known."""
    reach = data.draw(st.sampled_from(REACHES))
    gen = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    survival = torch.rand(BLOCK - 1, generator=gen).sqrt().cumprod(0).tolist()
    tables, state, correction = scene(device, survival, reach)
    hand, is_exact = by_hand(survival, reach), True
    for _ in range(6):
        ids = torch.stack([torch.randperm(24, generator=gen)[:k] for _ in range(ROWS)])
        rows = data.draw(st.sampled_from([1, 2, 2, 5, 7, 8]))
        shown = min(rows + reach[1], BLOCK)
        ids[shown:] = data.draw(st.sampled_from([-1, 0, 2**31 - 1]))
        listed = ids.tolist()
        is_exact &= is_clear(hand, listed, rows, shown)
        own = (ids if is_long else ids.int()).to(device)
        both = counts(rows, device), counts(shown, device)
        read = by.correct(own, *both, tables, state, correction)
        wanted = hand.correct(listed, rows, shown)
        assert read.dtype == torch.int32
        assert max(rows - reach[0], 1) <= int(read) <= shown
        if is_exact:
            assert int(read) == wanted
            assert float(correction.beyond) == pytest.approx(hand.beyond, abs=1e-4)
            assert (int(correction.kept), int(correction.dropped)) == (hand.kept, hand.dropped)
    for n, (times, experts) in hand.seen.items():
        assert float(correction.seen[n - 1]) == pytest.approx(times, rel=1e-5)
        assert float(correction.experts[n - 1]) == pytest.approx(experts, rel=1e-5)


@BY
@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_fetch_little_are_kept_and_dear_ones_dropped(device, by):
    """The first time their own number is the mean; from then on it is what is beyond that."""
    survival = [0.9, 0.8, 0.41, 0.3, 0.2, 0.1, 0.05]
    tables, state, correction = scene(device, survival, (0, 1), price=0.5)
    usual = [[0, 1], [2, 3], [4, 5], [0, 6]] + [[0, 1]] * 12
    cheap = [[0, 1], [2, 3], [4, 5], [0, 2]] + [[0, 1]] * 12

    def read(ids, rows):
        both = counts(rows, device), counts(rows + 1, device)
        ids = torch.tensor(ids, device=device)
        return int(by.correct(ids, *both, tables, state, correction))

    dear = [[0, 1], [2, 3], [4, 5], [6, 7]] + [[0, 1]] * 12
    assert [read(usual, 3) for _ in range(3)] == [4, 4, 4]  # 0.41 tokens, 0.1 s: worth it
    assert read(cheap, 3) == 4
    assert read(dear, 3) == 3
    assert int(correction.kept) == 4
    assert int(correction.dropped) == 1


@BY
@pytest.mark.parametrize("device", DEVICES)
def test_a_window_goes_back_where_the_last_rows_are_dear(device, by):
    survival = [0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.2]
    tables, state, correction = scene(device, survival, (2, 2), price=0.5)
    even = torch.tensor([[0, 1]] * 16, device=device)
    late = torch.tensor([[0, 1]] + [[2 * n, 2 * n + 1] for n in range(15)], device=device)
    both = counts(4, device), counts(6, device)
    for _ in range(5):
        by.correct(even, *both, tables, state, correction)
    assert int(by.correct(late, *both, tables, state, correction)) == 2


@BY
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reach", REACHES)
def test_without_a_price_the_best_length_is_the_one_by_costs(device, by, reach):
    """All of 1 .. 8 rows as the choice: never further from the best than the reach."""
    survival = [0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.2]
    tables, state, correction = scene(device, survival, reach, price=0.0)
    gains = expected_tokens(state.survival) - 0.9 * state.costs
    ids = torch.randint(0, 9, (16, 4), device=device)
    for rows in range(1, BLOCK + 1):
        first, last = max(rows - reach[0], 1), min(rows + reach[1], BLOCK)
        both = counts(rows, device), counts(last, device)
        found = int(by.correct(ids, *both, tables, state, correction))
        assert found == first + int(gains[first - 1 : last].argmax())


@BY
@pytest.mark.parametrize("device", DEVICES)
def test_after_the_end_nothing_is_read_and_nothing_learnt(device, by):
    tables, state, correction = scene(device, [0.5] * 7, (2, 2))
    ids, none = torch.zeros(16, 4, dtype=torch.int64, device=device), counts(0, device)
    assert int(by.correct(ids, none, none, tables, state, correction)) == 0
    teach(by, 0, state, clock=Clock.empty(BLOCK, device), correction=correction)
    assert float(correction.seen.sum()) == float(correction.squares) == 0
    assert float(correction.price) == pytest.approx(PRICE)


def learnt(by, device, rounds, prior, reach=(0, 1)):
    """A correction after rounds of (rows, experts beyond the mean, seconds taken)."""
    _, state, correction = scene(device, [0.5] * 7, reach, price=prior)
    clock = Clock.empty(BLOCK, device)
    clock.expected.copy_(state.costs)
    for rows, beyond, seconds in rounds:
        correction.beyond.fill_(beyond)
        teach(by, rows, state, seconds=seconds, clock=clock, correction=correction)
    return correction


@BY
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("true", "prior"), [(0.03, 0.0), (0.03, 0.06), (0.0, 0.05)])
def test_the_price_is_recovered_from_what_rounds_took(device, by, true, prior):
    """Noise of a tenth of a second, of rounds that take one to four."""
    gen = torch.Generator().manual_seed(0)
    rows = torch.randint(1, BLOCK + 1, (300,), generator=gen).tolist()
    beyond = (torch.randn(300, generator=gen) * 3).tolist()
    noise = (torch.randn(300, generator=gen) * 0.1).tolist()
    rounds = [
        (n, x, COSTS[n - 1] + true * x + e) for n, x, e in zip(rows, beyond, noise, strict=True)
    ]
    found = learnt(by, device, rounds, prior)
    assert float(found.price) == pytest.approx(true, abs=0.008)
    assert float(found.price) >= 0


@BY
@pytest.mark.parametrize("device", DEVICES)
def test_the_prior_stands_until_rounds_differ(device, by):
    same = learnt(by, device, [(4, 0.0, 9.0)] * 50, 0.04)
    assert float(same.price) == pytest.approx(0.04)
    assert float(learnt(by, device, [(4, 3.0, 0.0)] * 50, 0.04).price) == pytest.approx(0.04)


@BY
@pytest.mark.parametrize("device", DEVICES)
def test_one_round_that_was_held_up_moves_the_price_a_little(device, by):
    """Seven times its seconds: what is beyond a quarter of them counts as a quarter."""
    found = learnt(by, device, [(1, 2.0, 7.0)], 0.0)
    assert float(found.price) == pytest.approx(2 * 0.25 / (4 + PRIOR_SQUARES), rel=1e-5)


def test_what_does_not_fit_is_refused_by_name():
    tables, state, correction = scene("cpu", [0.5] * 7, (0, 1))
    ids, one = torch.zeros(16, 4, dtype=torch.int64), counts(1, "cpu")
    with pytest.raises(ShapeError, match="expert_ids"):
        kernels.correct(torch.zeros(17, 2).long(), one, one, tables, state, correction)
    with pytest.raises(ShapeError, match="shown"):
        kernels.correct(ids, one, one.long(), tables, state, correction)
    for name in ("price", "seen", "kept"):
        value = getattr(correction, name)
        damaged = replace(correction, **{name: value.double() if name == "kept" else value[None]})
        with pytest.raises(ShapeError, match=name):
            kernels.correct(ids, one, one, tables, state, damaged)
        with pytest.raises(ShapeError, match=name):
            teach(kernels, 1, state, clock=Clock.empty(BLOCK, "cpu"), correction=damaged)
