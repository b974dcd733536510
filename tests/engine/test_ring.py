# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What rounds leave in the ring, rounds after the end, and rounds that are enqueued ahead."""

from copy import deepcopy
from dataclasses import fields, replace

import pytest
import torch

from hybridspec import kernels
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.graph import Mailbox
from hybridspec.engine.loop import Feed, Tally, decode, read_slot
from hybridspec.engine.round import SLOTS, Request
from hybridspec.kernels.reference.accept import ROUND
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed, Hybrid
from hybridspec.policy.routing import RoutingCosts, correction_of
from tests.decoding import (
    Walk,
    begin,
    differing,
    drafted,
    finished,
    load,
    load_draft,
    plain,
    plain_ids,
    scripted,
)
from tests.kernels.gdn_cases import interpreted
from tests.tiny import ScriptedDrafter

pytestmark = pytest.mark.usefixtures("inference")

PROMPT = b"def area(r):\n    return"
PRICES = RoutingCosts(seconds_per_row=0.0, seconds_per_expert=0.06, layers=4, correlation=0.5)
STAIRS = [1.0, 1.3, 1.3, 1.3, 2.2, 2.2, 2.2, 2.2, *[4.0] * 8]
RIGHT = [0, 3, 15, 1, 7, 0, 2, 15, 5] * 6


@pytest.fixture(scope="module")
def walk(target):
    with torch.inference_mode():
        return Walk(target, PROMPT, 80)


def hybrid(correction="one", plain=0.5):
    return Hybrid(
        acceptance=Acceptance(slope=0.0, intercepts=(2.0,) * 15),
        latency=Latency.measured({0: STAIRS}, plain={0: plain}),
        correction=correction_of(correction, PRICES, torch.device("cpu")),
    )


def test_the_ring_holds_what_was_emitted_and_read(target, walk):
    rounds = scripted(target, PROMPT, walk.ids, right=RIGHT, rows=6)
    ledger, place = rounds.request.ledger, 1
    for number, right in enumerate(RIGHT[: 2 * SLOTS]):
        rounds.drafted_round()
        entry = read_slot(Mailbox(ledger), number, is_drafted=True)
        assert (len(entry.tokens), entry.rows) == (min(right, 5) + 1, 6)
        assert list(entry.tokens) == walk.ids[place : place + len(entry.tokens)]
        assert not entry.is_done
        place += len(entry.tokens)
        assert int(ledger.anchor) == entry.tokens[-1]
        assert int(ledger.length) == len(PROMPT) + place - 1
        assert int(ledger.budget) == 200 - place
    assert sorted(ledger.ring[:, ROUND].tolist()) == list(range(SLOTS, 2 * SLOTS))


def test_a_slot_that_was_written_again_is_not_taken_for_the_round_before(target, walk):
    rounds = scripted(target, PROMPT, walk.ids, right=[0] * 9)
    for _ in range(SLOTS + 1):
        rounds.drafted_round()
    with pytest.raises(AssertionError, match="before it is written again"):
        read_slot(Mailbox(rounds.request.ledger), 0, is_drafted=True)


def test_there_is_one_length(target, walk):
    request = scripted(target, PROMPT, walk.ids).request
    assert deepcopy(request).ledger.length is not request.ledger.length
    for one in (request, deepcopy(request)):
        one.ledger.length.add_(5)
        assert int(one.target.length) == int(one.ledger.length) == len(PROMPT) + 5
    with pytest.raises(AssertionError, match="one length, not two"):
        Request(
            **{f.name: getattr(request, f.name) for f in fields(request) if f.name != "target"},
            target=deepcopy(request.target),
        )


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("policy", ["fixed", "hybrid", "priced"])
def test_rounds_after_the_end_change_nothing(tiny_target, tiny_drafter, mode, policy):
    """With the real drafter, whose context must not grow either."""
    target = load(tiny_target, mode=mode)
    drafter = load_draft(tiny_drafter, target)
    chosen = {"fixed": Fixed(5), "hybrid": hybrid("off"), "priced": hybrid()}[policy]
    rounds = begin(target, PROMPT, drafter=drafter, policy=chosen, budget=9)
    finished(rounds)
    request, learnt = rounds.request, deepcopy(getattr(chosen, "state", None))
    before = deepcopy(request)
    known = request.draft.injected + request.draft.waiting
    for one in (drafted, plain, plain, drafted):
        entry = one(rounds)
        assert (entry.tokens, entry.rows, entry.is_done) == ((), 0, True)
    assert differing(request.target, before.target) == []
    for name in ("anchor", "budget", "length", "is_done"):
        assert torch.equal(getattr(request.ledger, name), getattr(before.ledger, name))
    assert int(request.ledger.committed) == 0
    assert request.draft.injected + request.draft.waiting == known == int(request.target.length)
    if learnt is not None:
        now = chosen.state
        assert all(torch.equal(getattr(now, f.name), getattr(learnt, f.name)) for f in fields(now))


@pytest.fixture(scope="module", params=["exact", "fast"])
def script(request, tiny_target):
    """A target of each mode, and its plain text."""
    target = load(tiny_target, mode=request.param)
    with torch.inference_mode():
        return target, plain_ids(target, PROMPT, 80)


@pytest.mark.parametrize("ahead", [0, 1, 3, SLOTS - 1])
@pytest.mark.parametrize("policy", ["plain", "fixed", "hybrid", "priced", "resting"])
def test_rounds_enqueued_ahead_emit_the_same(script, ahead, policy):
    """Some end at a stop id, some at the budget; those behind the end are not drained."""
    target, ids = script
    made = {
        "plain": lambda: Fixed(1),
        "fixed": lambda: Fixed(6),
        "hybrid": lambda: hybrid("off"),
        "priced": hybrid,
        "resting": lambda: hybrid(plain=0.2),
    }
    for budget, stop in ((1, 999), (2, 999), (40, 999), (60, ids[33])):
        right = [0] * 40 if policy == "resting" else RIGHT
        drafter = ScriptedDrafter(script=ids, prompt=len(PROMPT), right=right)
        rounds = begin(
            target,
            PROMPT,
            drafter=None if policy == "plain" else drafter,
            policy=made[policy](),
            stop_ids=(stop,),
            budget=budget,
        )
        found, reason, tally = finished(rounds, ahead=ahead)
        want = ids[: ids.index(stop) + 1] if stop in ids[:budget] else ids[:budget]
        assert (found, reason) == (want, "stop" if stop in want else "length")
        ledger = rounds.request.ledger
        assert int(ledger.length) == len(PROMPT) + len(want) - 1
        assert int(ledger.rounds) == tally.rounds + (ahead if tally.rounds else 0)
        if policy == "resting" and budget == 40:
            assert 0 < tally.rounds - tally.rounds_drafted < tally.rounds


def test_a_feed_decides_from_the_rounds_that_it_has_drained(target, walk):
    """At ahead = 0 from all rounds before; at 2 from all but the last two."""
    for ahead in (0, 2):
        policy = Watching(4)
        rounds = scripted(target, PROMPT, walk.ids, right=RIGHT, budget=60)
        rounds.policy = policy
        emissions = list(decode(rounds, Tally(), ahead=ahead))
        sizes = [len(emission.token_ids) for emission in emissions[1:]]
        for number, (context, left) in enumerate(policy.asked):
            emitted = sum(sizes[: max(number - ahead, 0)])
            assert (context, left) == (len(PROMPT) + emitted, 59 - emitted)
        told = [(len(PROMPT) + sum(sizes[:i]), 4, size) for i, size in enumerate(sizes)]
        assert policy.told == told


class Watching(Fixed):
    """Writes down what it is asked and told."""

    def __init__(self, rows):
        super().__init__(rows)
        object.__setattr__(self, "asked", [])
        object.__setattr__(self, "told", [])

    def wants_drafts(self, context, left):
        self.asked.append((context, left))
        return True

    def see_drafted(self, context, *, rows, tokens):
        self.told.append((context, rows, tokens))


def test_a_feed_goes_on_where_a_request_stands(target, walk):
    rounds = scripted(target, PROMPT, walk.ids, right=RIGHT, rows=4)
    first = [plain(rounds).tokens, drafted(rounds).tokens]
    feed = Feed.of(rounds)
    entry = feed.next()
    text = [walk.ids[0], *first[0], *first[1], *entry.tokens]
    assert text == walk.ids[: len(text)]
    assert feed.context == int(rounds.request.target.length)
    assert feed.left == int(rounds.request.ledger.budget)


@interpreted
@pytest.mark.parametrize("policy", ["fixed", "hybrid", "priced"])
def test_rounds_of_the_twins_equal_those_of_the_references(target, walk, monkeypatch, policy):
    """The same engine with Triton's settle, choose, correct and learn, interpreted."""
    pytest.importorskip("triton")
    twins = kernels._of_type("cuda")
    assert twins.settle is not kernels.of(torch.device("cpu")).settle
    found = []
    for by in (kernels.of(torch.device("cpu")), twins):
        monkeypatch.setattr(kernels, "of", lambda device, by=by: by)
        chosen = {"fixed": Fixed(6), "hybrid": hybrid("off"), "priced": hybrid()}[policy]
        rounds = scripted(target, PROMPT, walk.ids, right=RIGHT, budget=70)
        rounds.policy = chosen
        ids, reason, tally = finished(rounds, ahead=1)
        assert (ids, reason) == (walk.ids[:70], "length")
        assert differing(rounds.request.target, walk.states[69]) == []
        found.append((replace(tally, seconds=0.0), rounds.request.ledger.ring))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert max(found[0][0].lengths) <= MAX_ROWS


def test_a_device_without_triton_gets_the_references_and_a_line_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    found = kernels._of_type.__wrapped__("cuda")
    assert found == kernels.of(torch.device("cpu"))
    assert "no Triton" in caplog.text
