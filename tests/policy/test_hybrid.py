# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridspec.core.records import Block, Routed, Verdict
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.drafting import MEMORY, PROBE_SHARE
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import RATE_MEMORY, Fixed, Hybrid
from hybridspec.policy.routing import NewExperts, RoutingCosts, extra_seconds

BLOCK = 8
PRICES = RoutingCosts(seconds_per_row=0.1, seconds_per_expert=0.01, layers=8, correlation=0.5)
STAIRS = [1.0, 1.0, 1.5, 1.5, 2.25, 2.25, 2.25, 4.0]


def hybrid(seconds=STAIRS, routing=None, kappa=1.0):
    return Hybrid(
        acceptance=Acceptance.uninformed(len(seconds) - 1),
        latency=Latency.measured({0: list(seconds)}, plain={0: 0.5}),
        routing=routing,
        kappa=kappa,
    )


def count(value):
    return torch.tensor(value, dtype=torch.int32)


def verdict(accepted):
    return Verdict(accepted=count(accepted), is_done=torch.tensor(False))


def routed(ids):
    ids = torch.tensor(ids)
    nothing = torch.empty(len(ids), 0)
    return Routed(
        residual=nothing, normed=nothing, expert_ids=ids, expert_weights=torch.ones(ids.shape)
    )


def best(survival, rate, seconds=STAIRS):
    tokens, gains = 1.0, []
    for n, time in enumerate(seconds):
        tokens += survival[n - 1] if n else 0.0
        gains.append(tokens - rate * time)
    return gains.index(max(gains)) + 1


def falling(seed):
    gen = torch.Generator().manual_seed(seed)
    return torch.rand(BLOCK - 1, generator=gen).sqrt().cumprod(0)


def test_the_rate_is_a_ratio_of_sums_in_the_tables_own_seconds():
    policy = hybrid()
    survival = falling(0).tolist()
    expected = [1 + sum(survival[:n]) for n in range(BLOCK)]
    start = max(range(BLOCK), key=lambda n: expected[n] / STAIRS[n])
    tokens, seconds = expected[start], STAIRS[start]
    for number in range(60):
        survival = falling(number)
        rows = policy.choose(survival, context=0)
        assert int(rows) == best(survival.tolist(), tokens / seconds)
        read = 1 + number % BLOCK  # what routing leaves need not be what was chosen
        policy.learn(count(read), verdict(number % 3))
        tokens = RATE_MEMORY * tokens + number % 3 + 1
        seconds = RATE_MEMORY * seconds + STAIRS[read - 1]


def test_the_first_round_takes_the_best_ratio():
    survival = falling(3)
    expected = [1 + float(survival[:n].sum()) for n in range(BLOCK)]
    ratios = [e / s for e, s in zip(expected, STAIRS, strict=True)]
    assert int(hybrid().choose(survival, 0)) == ratios.index(max(ratios)) + 1


def test_a_dearer_second_shortens_the_block():
    survival = falling(4)
    lengths = [int(hybrid(kappa=kappa).choose(survival, 0)) for kappa in (0.0, 0.5, 1, 2, 9)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == BLOCK
    assert lengths[-1] < lengths[0]


def test_one_row_more_is_shown_as_far_as_the_block_goes():
    policy = hybrid(routing=PRICES)
    policy.choose(falling(0), 0)
    for rows in range(1, BLOCK + 1):
        assert int(policy.look_ahead(count(rows))) == min(rows + 1, BLOCK)


@settings(max_examples=150)
@given(
    ids=st.lists(
        st.lists(st.integers(0, 11), min_size=3, max_size=3, unique=True),
        min_size=BLOCK,
        max_size=BLOCK,
    ),
    seed=st.integers(0, 99),
    price=st.sampled_from([0.0, 1e-3, 5e-3, 2e-2, 1.0]),
    correlation=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_the_correction_keeps_and_drops_as_the_formula_says(ids, seed, price, correlation):
    costs = RoutingCosts(
        seconds_per_row=0.01, seconds_per_expert=price, layers=5, correlation=correlation
    )
    policy, survival = hybrid(routing=costs), falling(seed)
    seen, kept, dropped = {}, 0, 0
    first = policy.choose(survival, 0)
    rate = 1 + float(survival[: int(first) - 1].sum())  # n* of the first round has the best ratio
    rate /= STAIRS[int(first) - 1]
    for rows in (1, 2, 5, 2, 1, 2, 7, 5, BLOCK):
        shown = policy.look_ahead(count(rows))
        found = policy.correct(routed(ids), survival, count(rows), shown)
        assert found.dtype == torch.int32
        if rows == BLOCK:
            assert int(found) == BLOCK
            continue
        new = len(set(ids[rows]) - {expert for row in ids[:rows] for expert in row})
        mean = sum(seen[rows]) / len(seen[rows]) if rows in seen else new
        others = max(mean + correlation * (new - mean), 0.0)
        extra = 0.01 + price * (new + 4 * others)
        gain = float(survival[rows - 1]) - rate * extra
        if abs(gain) > 1e-5:
            assert int(found) == rows + (gain > 0)
        kept, dropped = kept + (int(found) > rows), dropped + (int(found) == rows)
        seen.setdefault(rows, []).append(new)
        ids = ids[1:] + ids[:1]
    assert (policy.kept, policy.dropped) == (kept, dropped)


def test_a_free_row_is_kept_and_a_dear_one_dropped():
    ids = [[0, 1], [2, 3], [0, 3], [4, 5]]
    survival = torch.tensor([0.9, 0.8, 0.7, 0.5, 0.4, 0.3, 0.2])
    costs = RoutingCosts(seconds_per_row=0.0, seconds_per_expert=0.1, layers=8, correlation=0.5)
    policy = hybrid(routing=costs)
    policy.choose(survival, 0)
    assert int(policy.correct(routed(ids), survival, count(2), count(3))) == 3  # no new expert
    assert int(policy.correct(routed(ids), survival, count(3), count(4))) == 3  # two
    assert (policy.kept, policy.dropped) == (1, 1)


@pytest.mark.parametrize("seed", range(30))
def test_without_routing_prices_the_choice_stands(seed):
    policy, survival = hybrid(), falling(seed)
    rows = policy.choose(survival, 0)
    shown = policy.look_ahead(rows)
    assert int(shown) == int(rows)
    assert int(policy.correct(routed([[0]] * BLOCK), survival, rows, shown)) == int(rows)


def test_new_experts_are_averaged_by_row():
    seen = NewExperts()
    assert seen.mean(3, default=5.0) == 5.0
    for rows, new in ((3, 1), (3, 4), (2, 7)):
        seen.see(rows, new)
    assert (seen.mean(3, 0.0), seen.mean(2, 0.0), seen.mean(9, 1.5)) == (2.5, 7.0, 1.5)


def test_other_layers_never_fetch_fewer_than_no_experts():
    costs = RoutingCosts(seconds_per_row=1.0, seconds_per_expert=0.5, layers=41, correlation=1.0)
    assert extra_seconds(0, 0.0, costs) == 1.0
    assert extra_seconds(2, 2.0, costs) == 1.0 + 0.5 * (2 + 40 * 2)
    assert extra_seconds(0, 2.0, costs) == 1.0  # s = 1: as few elsewhere as here
    damped = RoutingCosts(seconds_per_row=0, seconds_per_expert=1, layers=2, correlation=0.25)
    assert extra_seconds(4, 2.0, damped) == 4 + 2.5


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_fixed_never_changes_its_mind(rows):
    policy = Fixed(rows)
    block = Block(tokens=torch.zeros(16, dtype=torch.int64), log_odds=torch.full((15,), -9.0))
    survival = policy.survival(block)
    chosen = policy.choose(survival, 300)
    assert int(chosen) == int(policy.look_ahead(chosen)) == rows
    assert int(policy.correct(routed([[0]] * 16), survival, chosen, chosen)) == rows
    policy.learn(chosen, verdict(0))
    assert int(policy.choose(survival, 0)) == rows


def test_a_plain_step_is_taken_at_the_context_of_its_round():
    seconds = {0: [3.0] * BLOCK, 100: [3.0] * BLOCK}
    policy = Hybrid(
        acceptance=Acceptance.uninformed(BLOCK - 1),
        latency=Latency.measured(seconds, plain={0: 5.0, 100: 1.0}),
    )
    for _ in range(MEMORY):
        assert policy.wants_drafts(100, 99)
        policy.choose(falling(0), 100)
        policy.learn(count(1), verdict(0))
    assert not policy.wants_drafts(100, 99)
    steps = 0
    while not policy.wants_drafts(100, 99):
        policy.rest(100)
        steps += 1
    assert steps == pytest.approx(2.0 / PROBE_SHARE, abs=1)


@pytest.mark.parametrize(
    ("left", "could"), [(1, False), (2, False), (3, True), (4, True), (9, True)]
)
def test_near_the_end_no_draft_is_made_that_could_not_save_time(left, could):
    """Two tokens left: two plain steps take 2.0, two rows with their draft 2.1."""
    policy = Hybrid(
        acceptance=Acceptance.uninformed(BLOCK - 1),
        latency=Latency.measured({0: [2.0, *[2.1] * (BLOCK - 1)]}, plain={0: 1.0}),
    )
    assert policy.wants_drafts(0, left) is could
