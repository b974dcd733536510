# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from hybridspec.kernels import length as kernels
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import length as reference
from hybridspec.kernels.reference.length import LengthState, LengthTables
from hybridspec.policy.latency import Latency
from tests.kernels.gdn_cases import counts, interpreted
from tests.kernels.learning_cases import teach
from tests.kernels.length_by_hand import ByHand

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICES = [
    pytest.param("cpu", marks=interpreted, id="interpreted"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="cuda"),
]
STAIRS = [1.0, 1.0, 1.5, 1.5, 2.25, 2.25, 2.25, 4.0]
CONTEXTS = [64, 1024, 4096]
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def floats(values, device):
    return torch.tensor(values, dtype=torch.float32, device=device)


def tables(device, seconds=STAIRS, contexts=(0,), above=1, kappa=1.0, intercepts=None):
    """Seconds grow with the context, by a tenth of themselves from one to the next."""
    drafts = len(seconds) - 1
    return LengthTables(
        slope=floats(1.0, device),
        intercepts=floats(intercepts or [0.0] * drafts, device),
        contexts=counts(list(contexts), device),
        seconds=floats([[s * (1 + i / 10) for s in seconds] for i in range(len(contexts))], device),
        above=above,
        kappa=kappa,
    )


def doubled(parts):
    """The same numbers in float64, integers as they are."""
    changed = {}
    for field in fields(parts):
        value = getattr(parts, field.name)
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        if isinstance(value, torch.Tensor):
            changed[field.name] = value.double() if is_float else value.clone()
    return replace(parts, **changed)


def logits(values):
    """Log-odds of these chances; 0 and 1 become infinite."""
    return torch.tensor(values, dtype=torch.float64).logit().float()


def choose(odds, known, state, context=0, budget=1000, is_done=False, by=kernels):
    device = known.slope.device
    done = torch.tensor(is_done, device=device)
    odds = odds.to(device=device, dtype=known.slope.dtype)
    return by.choose(odds, known, state, counts(context, device), counts(budget, device), done)


def near(state, wanted):
    return all(
        torch.allclose(getattr(state, f.name).double(), getattr(wanted, f.name).double(), **CLOSE)
        for f in fields(state)
    )


def is_clear(known, state):
    """In float64 no length comes close to the best one."""
    expected = torch.cat((state.costs.new_ones(1), 1 + state.survival.cumsum(0)))
    gain = expected - known.kappa * state.tokens / state.seconds * state.costs
    best, second = gain.topk(2).values
    return float(best - second) > 1e-5


chances = st.lists(
    st.sampled_from([0.0, 0.02, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0]), min_size=7, max_size=7
)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=100)
@given(
    chances=chances,
    context=st.integers(0, 6000),
    budget=st.integers(1, 12),
    kappa=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    tokens=st.sampled_from([0.0, 3.0, 40.0]),
)
def test_lengths_survival_and_costs_equal_float64(device, chances, context, budget, kappa, tokens):
    known = tables(device, contexts=CONTEXTS, kappa=kappa, intercepts=[0.1, 0, -0.2, 0, 0.3, 0, 0])
    state = LengthState.empty(8, device)
    if tokens:
        state.tokens.fill_(tokens)
        state.seconds.fill_(20.0)
    exact, exactly = doubled(known), doubled(state)
    rows, shown = choose(logits(chances), known, state, context, budget)
    wanted, _ = choose(logits(chances), exact, exactly, context, budget, by=reference)
    assert rows.dtype == shown.dtype == torch.int32
    assert int(shown) == min(int(rows) + 1, 8)
    starts = not tokens
    if not starts or is_clear(exact, exactly):
        assert near(state, exactly)
    if is_clear(exact, exactly):
        assert int(rows) == int(wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("context", [0, 63, 64, 65, 1023, 1024, 2560, 4095, 4096, 9999])
@pytest.mark.parametrize("contexts", [[64], [64, 1024], CONTEXTS])
def test_seconds_at_a_context_are_those_of_the_latency_table(device, context, contexts):
    known, state = tables(device, contexts=contexts), LengthState.empty(8, device)
    choose(torch.zeros(7), known, state, context)
    measured = dict(zip(contexts, known.seconds.tolist(), strict=True))
    latency = Latency.measured(measured, plain=dict.fromkeys(contexts, 1.0))
    wanted = [latency.drafted_at(context, rows=rows) for rows in range(1, 9)]
    assert torch.allclose(state.costs.cpu(), torch.tensor(wanted), **CLOSE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("chances", "rows"),
    [
        ([0.0] * 7, 1),
        ([1.0] * 7, 8),
        ([1.0] * 3 + [0.0] * 4, 4),
        ([1.0] * 2 + [torch.nan] + [1.0] * 4, 3),
        ([torch.nan] * 7, 1),
        ([0.5] * 7, 1),
    ],
)
def test_certain_hopeless_and_senseless_drafts(device, chances, rows):
    """At one token a second, with rows that cost 0.6 s each and the first 1 s."""
    known = tables(device, [1 + 0.6 * n for n in range(8)])
    state = LengthState.empty(8, device)
    state.tokens.fill_(1.0)
    state.seconds.fill_(1.0)
    odds = torch.tensor(chances, dtype=torch.float64).logit().float()
    for by in (kernels, reference):
        assert int(choose(odds, known, state, by=by)[0]) == rows
        assert not state.survival.isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by", [kernels, reference], ids=["kernel", "reference"])
def test_of_equal_lengths_the_shorter_is_taken(device, by):
    """Every row costs a second, is certain, and a second is worth a token: all gains are 0."""
    known, state = tables(device, [float(n) for n in range(1, 17)]), LengthState.empty(16, device)
    assert int(choose(torch.full((15,), 40.0), known, state, by=by)[0]) == 1
    assert float(state.tokens) == float(state.seconds) == 1
    assert (state.survival == 1).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("budget", range(1, 9))
def test_no_draft_counts_beyond_the_budget(device, budget):
    known, state = tables(device, [1 + n / 8 for n in range(8)]), LengthState.empty(8, device)
    rows, _ = choose(torch.full((7,), 40.0), known, state, budget=budget)
    assert int(rows) == budget
    assert state.survival.tolist() == [1.0] * (budget - 1) + [0.0] * (8 - budget)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by", [kernels, reference], ids=["kernel", "reference"])
def test_after_the_end_no_row_is_read_and_nothing_is_learnt(device, by):
    known, state = tables(device), LengthState.empty(8, device)
    choose(torch.zeros(7), known, state)
    before = doubled(state)
    rows, shown = choose(torch.ones(7), known, state, budget=5, is_done=True, by=by)
    teach(by, int(rows), state)
    assert int(rows) == int(shown) == 0
    assert all(
        torch.equal(getattr(before, f.name), getattr(state, f.name).to(getattr(before, f.name)))
        for f in fields(state)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by", [kernels, reference], ids=["kernel", "reference"])
@pytest.mark.parametrize("above", [0, 1, 2])
def test_rounds_equal_those_by_hand(device, by, above):
    """Fifty rounds of both: the same rows and rate."""
    gen = torch.Generator().manual_seed(3)
    known = tables(device, contexts=CONTEXTS, above=above)
    state = LengthState.empty(8, device)
    seconds = dict(zip(CONTEXTS, known.seconds.tolist(), strict=True))
    hand = ByHand(seconds=seconds, reach=(0, above))
    lengths = set()
    for number in range(50):
        odds, context = torch.randn(7, generator=gen) * 2 + 1, 50 + 97 * number
        rows, shown = choose(odds, known, state, context, budget=60 - number, by=by)
        wanted = hand.choose(odds.tolist(), context, budget=60 - number)
        assert (int(rows), int(shown)) == wanted
        committed = number % int(rows) + 1
        teach(by, int(rows), state, committed=committed)
        hand.learn(int(rows), committed)
        lengths.add(int(rows))
    assert len(lengths) >= 3
    assert float(state.tokens) == pytest.approx(hand.tokens, rel=1e-5)
    assert float(state.seconds) == pytest.approx(hand.spent, rel=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused_by_name(device):
    known, state = tables(device), LengthState.empty(8, device)
    wrong = {
        "seconds": replace(known, seconds=known.seconds[:, :4].contiguous()),
        "slope": replace(known, slope=known.slope.double()),
        "contexts": replace(known, contexts=known.contexts.long()),
    }
    for name, damaged in wrong.items():
        with pytest.raises(ShapeError, match=name):
            choose(torch.zeros(7), damaged, state)
    with pytest.raises(ShapeError, match="log_odds"):
        choose(torch.zeros(6), known, state)
    with pytest.raises(ShapeError, match="costs"):
        choose(torch.zeros(7), known, replace(state, costs=state.costs[:4]))
