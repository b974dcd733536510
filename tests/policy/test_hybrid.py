# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.core.records import Block, Routed
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.length import RATE_MEMORY
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.drafting import MEMORY, PROBE_SHARE
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed, Hybrid
from hybridspec.policy.routing import REACH, RoutingCosts, correction_of
from tests.kernels.length_by_hand import MEMORY as MEMORY_BY_HAND
from tests.kernels.length_by_hand import ByHand

BLOCK = 8
PRICES = RoutingCosts(seconds_per_row=0.1, seconds_per_expert=0.1, layers=8, correlation=0.5)
CPU = torch.device("cpu")
STAIRS = [1.0, 1.0, 1.5, 1.5, 2.25, 2.25, 2.25, 4.0]
DEAR = [2 * seconds for seconds in STAIRS]


def hybrid(seconds=None, correction="off", kappa=1.0, plain=0.5):
    seconds = seconds or {0: STAIRS}
    return Hybrid(
        acceptance=Acceptance.uninformed(BLOCK - 1),
        latency=Latency.measured(seconds, plain=dict.fromkeys(seconds, plain)),
        correction=correction_of(correction, PRICES, CPU),
        kappa=kappa,
    )


def count(value):
    return torch.tensor(value, dtype=torch.int32)


def ledger(context=0, budget=1000):
    return Ledger.opened(torch.tensor(7), length=count(context), budget=budget, slots=1)


def block(seed):
    gen = torch.Generator().manual_seed(seed)
    return Block(
        tokens=torch.zeros(BLOCK, dtype=torch.int64),
        log_odds=torch.randn(BLOCK - 1, generator=gen) * 2 + 1,
    )


def routed(ids):
    ids = torch.tensor(ids)
    nothing = torch.empty(len(ids), 0)
    return Routed(
        residual=nothing, normed=nothing, expert_ids=ids, expert_weights=torch.ones(ids.shape)
    )


@pytest.mark.parametrize("correction", ["off", "one", "window"])
def test_sixty_rounds_are_those_by_hand(correction):
    """At rising contexts and falling budgets; the rate is kept in the table's seconds."""
    seconds, gen = {100: STAIRS, 400: DEAR}, torch.Generator().manual_seed(1)
    policy, lengths = hybrid(seconds, correction), set()
    hand = ByHand(seconds=seconds, reach=REACH.get(correction), price=PRICES.per_first_expert)
    for number in range(60):
        proposed, context, budget = block(number), 50 + 9 * number, 64 - number
        rows, shown = policy.choose(proposed, ledger(context, budget))
        wanted = hand.choose(proposed.log_odds.tolist(), context, budget)
        assert (int(rows), int(shown)) == wanted
        ids = [torch.randperm(12, generator=gen)[:3].tolist() for _ in range(BLOCK)]
        read = policy.correct(routed(ids), rows, shown)
        assert int(read) == hand.correct(ids, *wanted)
        committed = number % int(read) + 1
        settled = ledger(context, budget)
        settled.committed.fill_(committed)
        policy.learn(proposed, rows, read, settled)
        hand.learn(int(read), committed)
        lengths.add(int(read))
    assert len(lengths) >= 3
    if correction == "off":
        assert policy.correction is None
        return
    found = int(policy.correction.kept), int(policy.correction.dropped)
    assert found == (hand.kept, hand.dropped)
    assert min(found) > 0


def test_the_rate_forgets_as_by_hand():
    assert RATE_MEMORY == MEMORY_BY_HAND


def test_a_dearer_second_shortens_the_block():
    lengths = [
        int(hybrid(kappa=kappa).choose(block(4), ledger())[0]) for kappa in (0.0, 0.5, 1, 2, 9)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == BLOCK
    assert lengths[-1] < lengths[0]


@pytest.mark.parametrize("seed", range(30))
def test_without_a_correction_the_choice_stands(seed):
    policy = hybrid()
    rows, shown = policy.choose(block(seed), ledger())
    assert int(shown) == int(rows)
    assert int(policy.correct(routed([[0]] * BLOCK), rows, shown)) == int(rows)


def test_where_experts_have_no_price_nothing_is_corrected():
    assert correction_of("window", None, CPU) is None
    assert correction_of("off", PRICES, CPU) is None


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_fixed_never_changes_its_mind(rows):
    policy = Fixed(rows)
    drafts = Block(tokens=torch.zeros(16, dtype=torch.int64), log_odds=torch.full((15,), -9.0))
    for context in (300, 0):
        chosen, shown = policy.choose(drafts, ledger(context))
        assert int(chosen) == int(shown) == rows
        assert chosen.dtype == torch.int32
        assert int(policy.correct(routed([[0]] * 16), chosen, shown)) == rows
        policy.learn(drafts, chosen, chosen, ledger(context))
        policy.see_drafted(context, rows=rows, tokens=1)
        assert policy.wants_drafts(context, 99)


def test_rounds_are_judged_at_the_context_where_they_were_taken():
    seconds = {0: [3.0] * BLOCK, 100: [3.0] * BLOCK}
    policy = Hybrid(
        acceptance=Acceptance.uninformed(BLOCK - 1),
        latency=Latency.measured(seconds, plain={0: 5.0, 100: 1.0}),
    )
    for _ in range(MEMORY):
        assert policy.wants_drafts(100, 99)
        policy.see_drafted(100, rows=1, tokens=1)
    assert not policy.wants_drafts(100, 99)
    steps = 0
    while not policy.wants_drafts(100, 99):
        policy.see_plain(100)
        steps += 1
    assert steps == pytest.approx(2.0 / PROBE_SHARE, abs=1)


@pytest.mark.parametrize(("rows", "goes_on"), [(1, True), (8, False)])
def test_a_drafted_round_took_what_its_rows_take(rows, goes_on):
    """Two tokens a round, at 0.7 s a plain step: worth a second of one row, not four of eight."""
    policy = hybrid(plain=0.7)
    for _ in range(MEMORY):
        policy.see_drafted(0, rows=rows, tokens=2)
    assert policy.wants_drafts(0, 99) is goes_on


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
