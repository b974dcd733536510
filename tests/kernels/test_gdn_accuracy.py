# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How far the GDN kernels may stand from float64: after one round and after thousands."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.kernels import gdn
from hybridspec.kernels.reference import gdn as reference
from tests.kernels.gdn_cases import (
    EVERYWHERE,
    ON_CUDA,
    case,
    committed,
    copied,
    doubled,
    hard_case,
    judged,
    move,
    usual,
)
from tests.tolerances import GDN_OUTPUTS, GDN_ROUNDS, GDN_STATE, distance

BOTH = [(gdn.verify_exact, gdn.commit), (gdn.verify_block, gdn.commit_block)]
HARD = [
    (correlation, (0.9, 1.0), alpha)
    for correlation in (0.0, 0.5, 0.9, 1.0)
    for alpha in (0.9999, 0.5, 1e-8)
]
"""key correlation, write strengths, decay; in the interpreter two of them"""

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
everywhere = pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
modes = pytest.mark.parametrize(("verify", "commit"), BOTH, ids=["exact", "block"])


@everywhere
@modes
def test_correlated_keys_and_strong_writes_cost_no_digits(verify, commit, device, dtype):
    exact = verify is gdn.verify_exact
    for hard in HARD if device == "cuda" else HARD[-3::2] if exact else HARD:
        given = hard_case(usual(device), device, dtype, *hard, seed=31)
        for rows in (16, 7) if device == "cuda" else (6,):
            now = given.with_rows(rows)
            y = verify(*now.arguments())
            wanted, state = judged(now)
            found = committed(commit, now, now.records, rows)
            assert distance(found.recurrent, state.recurrent) < GDN_STATE, (hard, rows)
            if dtype is torch.float32:
                assert distance(y[:rows], wanted[:rows]) < GDN_STATE, (hard, rows)
            else:
                assert places(y[:rows], wanted[:rows]) <= 1, (hard, rows)


@everywhere
@modes
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e6])
def test_states_and_values_of_any_size_keep_their_digits(verify, commit, scale, device, dtype):
    """Operands of products are fp16: a state is scaled by its own magnitude, values are not cut."""
    given = case(usual(device), device, dtype, seed=3)
    state = copied(given.state)
    state.recurrent.mul_(scale)
    own = replace(given, state=state).with_rows(9)
    verify(*own.arguments())
    found = committed(commit, own, own.records, 9)
    assert distance(found.recurrent, judged(own)[1].recurrent) < GDN_STATE


def test_places_are_counted_in_units_of_the_last_one():
    wanted = torch.tensor([[1.0, 1.0, 1.5, -2.0]], dtype=torch.float64)
    found = torch.tensor([[1.0, 1 + 2**-7, 1.5, -2 - 2**-6]])
    assert places(found.bfloat16(), wanted) == 1
    assert places(torch.tensor([[1.0, 1.0, 1.5, -2 - 2**-5]]).bfloat16(), wanted) == 2


def places(found, wanted):
    """Largest distance in units of bf16's last place; rows [..., V].

    A number under a sixteenth of its row's root mean square counts as that large: there a sum has
    cancelled, and no arithmetic in fp32 keeps its last place.
    """
    floor = wanted.square().mean(-1, keepdim=True).sqrt() / 16
    unit = torch.exp2(torch.maximum(wanted.abs(), floor).log2().floor() - 7)
    return float(((found.double() - wanted).abs() / unit).max())


def pool(device, dtype, hard, size):
    """Different inputs of one layer."""
    return [hard_case(usual(device), device, dtype, *hard, seed=40 + i) for i in range(size)]


@pytest.mark.parametrize("hard", [*HARD[::3], HARD[-1]], ids=str)
@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
def test_a_thousand_rounds_of_random_acceptance_stay_near(device, dtype, hard):
    drifts(BOTH, pool(device, dtype, hard, 64), rounds=1000)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE[:1])
def test_rounds_of_random_acceptance_stay_near(device, dtype):
    drifts(BOTH[1:], pool(device, dtype, (0.9, (0.9, 1.0), 0.9999), 8), rounds=24)


def drifts(modes, inputs, rounds):
    """All move the same accepted rows of the same inputs; only the judge does so in float64."""
    gen = torch.Generator().manual_seed(0)
    judges = [given.in_float64() for given in inputs]
    true = judges[0].state
    states = [copied(inputs[0].state) for _ in modes]
    for turn in torch.randint(len(inputs), (rounds,), generator=gen).tolist():
        rows = torch.randint(1, 17, (), generator=gen, dtype=torch.int32)
        judge = replace(judges[turn], state=true, rows=rows)
        reference.verify_exact(*judge.arguments())
        move(reference.commit, true, judge.records, rows)
        accepted = rows.to(inputs[turn].qkv.device)
        for (verify, commit), state in zip(modes, states, strict=True):
            given = replace(inputs[turn], state=state)
            verify(*given.arguments())
            move(commit, state, given.records, accepted)
    for state in states:
        assert distance(state.recurrent, true.recurrent) < GDN_ROUNDS
        assert torch.equal(state.conv.double(), true.conv)


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
def test_two_thousand_rounds_from_one_graph_stay_near(device, dtype):
    """Lengths and accepted rows change on the device between replays, each request its own."""
    gen = torch.Generator().manual_seed(0)
    requests, rounds = 2, 2000
    inputs = [case(usual(device), device, dtype, 60 + i, (requests,)) for i in range(32)]
    inputs = [replace(given, weights=inputs[0].weights) for given in inputs]
    judges = [given.in_float64() for given in inputs]
    graphs = [Captured(*mode, inputs[0]) for mode in BOTH]
    for graph in graphs[1:]:  # the warm-up has moved the states
        graph.given.state.conv.copy_(graphs[0].given.state.conv)
        graph.given.state.recurrent.copy_(graphs[0].given.state.recurrent)
    true = doubled(graphs[0].given.state)
    worst = torch.zeros((), dtype=torch.float64, device=device)
    for turn in torch.randint(len(inputs), (rounds,), generator=gen).tolist():
        rows, accepted = torch.randint(1, 17, (2, requests), generator=gen, dtype=torch.int32)
        accepted = accepted.minimum(rows)
        judge = replace(judges[turn], state=true, rows=rows)
        wanted = reference.verify_exact(*judge.arguments())
        move(reference.commit, true, judge.records, accepted)
        for graph in graphs:
            y = graph.replay(inputs[turn], rows, accepted)
            for i, n in enumerate(rows.tolist()):
                off = (y[i, :n].double() - wanted[i, :n]).norm() / wanted[i, :n].norm()
                worst = torch.maximum(worst, off)
    for state in (graph.given.state for graph in graphs):
        assert distance(state.recurrent, true.recurrent) < GDN_ROUNDS
        assert torch.equal(state.conv.double(), true.conv)
    assert float(worst) < GDN_OUTPUTS[dtype]


class Captured:
    """A round as a CUDA graph, with inputs, counts and states of its own."""

    def __init__(self, verify, commit, given):
        held = {x: getattr(given, x).clone() for x in ("qkv", "a", "b", "rows")}
        self.given = replace(given, **held, **given.fresh())
        self.accepted = torch.ones_like(given.rows)

        def one_round():
            y = verify(*self.given.arguments())
            move(commit, self.given.state, self.given.records, self.accepted)
            return y

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            one_round()
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.y = one_round()

    def replay(self, given, rows, accepted):
        """Outputs of these inputs, until the next replay; the states move on."""
        for name in ("qkv", "a", "b"):
            getattr(self.given, name).copy_(getattr(given, name))
        self.given.rows.copy_(rows)
        self.accepted.copy_(accepted)
        self.graph.replay()
        return self.y
