# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A round is one straight line of device work: nothing in it asks a tensor for its value.

Rounds run here on tensors of the device "meta", which have no values: whoever asks for one raises.
What a round calls is stood in for by operations of the same shapes; round and policy are the real
ones. A round may then be captured as a graph, as far as what it calls may.
"""

from dataclasses import dataclass, field, replace

import pytest
import torch

from hybridspec import kernels
from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Block, Reading, Routed
from hybridspec.engine.round import Request, Rounds
from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.kernels.reference.clock import Clock
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed, Hybrid
from hybridspec.policy.routing import RoutingCosts, correction_of
from tests.watching import Crossings

pytestmark = pytest.mark.usefixtures("inference")

META = torch.device("meta")
PRICES = RoutingCosts(seconds_per_row=0.1, seconds_per_expert=0.01, layers=8, correlation=0.5)


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device=META)


def count():
    return empty(dtype=torch.int32)


@dataclass
class Calls:
    """Target, drafter, state and kernels in one, which write down what a round calls."""

    names: list[str] = field(default_factory=list)
    length: torch.Tensor = field(default_factory=count)

    def empty_state(self, positions):
        return self

    def propose(self, anchor, state):
        self.names.append("propose")
        return Block(tokens=empty(MAX_ROWS, dtype=torch.int64), log_odds=empty(MAX_ROWS - 1))

    def read_to_router(self, tokens, rows, state):
        assert (tokens.dtype, rows.dtype, rows.shape) == (torch.int64, torch.int32, ())
        self.names.append(f"read {len(tokens)} to router")
        ids = empty(MAX_ROWS, 2, dtype=torch.int64)
        return Routed(
            residual=empty(MAX_ROWS, 8),
            normed=empty(MAX_ROWS, 8),
            expert_ids=ids,
            expert_weights=empty(MAX_ROWS, 2),
        )

    def read_on(self, routed, rows, state):
        self.names.append("read on")
        tokens = empty(MAX_ROWS, dtype=torch.int64)
        return Reading(tokens=tokens, gaps=empty(MAX_ROWS), taps=empty(MAX_ROWS, 8))

    def choose(self, *arguments):
        self.names.append("choose")
        return count(), count()

    def correct(self, *arguments):
        self.names.append("correct")
        return count()

    def settle(self, *arguments):
        self.names.append("settle")

    def commit(self, rows):
        self.names.append("commit")

    def take(self, taps, state, rows=None):
        assert taps.shape == (MAX_ROWS, 8)
        self.names.append("take")

    def learn(self, odds, chosen, rows, ledger, state, acceptance, clock, correction):
        assert odds.shape == (MAX_ROWS - 1,)
        assert state.costs.shape == (MAX_ROWS,)
        assert (chosen.dtype, rows.dtype) == (torch.int32, torch.int32)
        parts = {"drafts": acceptance, "time": clock, "price": correction}
        known = [name for name, part in parts.items() if part is not None]
        self.names.append(" ".join(["learn", *known]))

    def begin(self, clock):
        self.names.append("begin")


@pytest.fixture
def calls(monkeypatch):
    calls = Calls()
    monkeypatch.setattr(kernels, "of", lambda device: calls)
    return calls


def without_values(calls, policy):
    request = Request.empty(calls, calls, stop_ids=(1, 2), positions=9)
    return Rounds(target=calls, drafter=calls, policy=policy, request=request)


def hybrid(correction="one", clock=None, learning=None):
    return Hybrid(
        acceptance=Acceptance.uninformed(MAX_ROWS - 1),
        latency=Latency.measured({0: [1.0] * MAX_ROWS, 9: [2.0] * MAX_ROWS}, plain={0: 1, 9: 1}),
        correction=correction_of(correction, PRICES, META),
        clock=clock,
        learning=learning,
        device=META,
    )


@pytest.mark.parametrize(
    ("correction", "read"),
    [("off", "read on"), ("one", "correct, read on"), ("window", "correct, read on")],
)
def test_a_drafted_round_under_hybrid_asks_for_no_value(calls, correction, read):
    without_values(calls, hybrid(correction)).drafted_round()
    learnt = "learn" if correction == "off" else "learn price"
    line = f"propose, choose, read 16 to router, {read}, settle, commit, take, {learnt}"
    assert ", ".join(calls.names) == line


def test_a_round_that_is_timed_asks_for_no_value(calls):
    clock = Clock.empty(MAX_ROWS, META)
    without_values(calls, hybrid("window", clock)).drafted_round()
    line = (
        "begin, propose, choose, read 16 to router, correct, read on, settle, commit, take, "
        "learn time price"
    )
    assert ", ".join(calls.names) == line


def test_a_round_that_is_learnt_from_asks_for_no_value(calls):
    known = AcceptanceState.begun(1.0, (0.0,) * (MAX_ROWS - 1), warm_up=0, device=META)
    policy = hybrid("off", learning=known)
    without_values(calls, policy).drafted_round()
    line = "propose, choose, read 16 to router, read on, settle, commit, take, learn drafts"
    assert ", ".join(calls.names) == line
    assert policy.tables.slope is known.slope
    assert policy.tables.intercepts is known.served
    known.reset()


def test_a_drafted_round_of_fixed_length_asks_for_no_value(calls):
    without_values(calls, Fixed(5, device=META)).drafted_round()
    line = "propose, read 16 to router, read on, settle, commit, take"
    assert ", ".join(calls.names) == line


def test_a_plain_round_asks_for_no_value(calls):
    without_values(calls, hybrid()).plain_round()
    assert ", ".join(calls.names) == "read 1 to router, read on, settle, commit, take"
    calls.names.clear()
    rounds = replace(without_values(calls, Fixed(1, device=META)), drafter=None)
    rounds.plain_round()
    assert ", ".join(calls.names) == "read 1 to router, read on, settle, commit"


@pytest.mark.parametrize("ask", [int, bool, float, torch.Tensor.item, torch.Tensor.tolist, range])
def test_whoever_asks_is_caught(calls, ask):
    rounds = without_values(calls, Asking(5, ask, device=META))
    with pytest.raises((RuntimeError, NotImplementedError, TypeError), match=r"[Mm]eta"):
        rounds.drafted_round()


def test_a_round_copies_nothing_from_one_device_to_another(calls):
    rounds = without_values(calls, hybrid())
    with Crossings() as crossings:
        rounds.drafted_round()
        rounds.plain_round()
    assert crossings.sizes == []
    with Crossings() as crossings:
        empty(1000).copy_(torch.zeros(1000))
    assert crossings.sizes == [4000]


@dataclass(frozen=True)
class Asking(Fixed):
    """Asks for the number of rows."""

    ask: object = int

    def correct(self, routed, rows, shown):
        self.ask(rows)
        return rows
