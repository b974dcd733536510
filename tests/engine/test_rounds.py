# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rounds whose acceptance is forced, against plain decoding: tokens and every state tensor."""

import random
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from hybridspec.kernels.reference.attention import PAGE
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed, Hybrid
from hybridspec.policy.routing import RoutingCosts, correction_of
from tests.decoding import (
    ZURICH,
    Walk,
    begin,
    differing,
    drafted,
    finished,
    load,
    plain,
    scripted,
)
from tests.tiny import ScriptedDrafter, write_target
from tests.tolerances import distance

pytestmark = pytest.mark.usefixtures("inference")

PROMPTS = {"code": b"def area(r):\n    return", "repetition": ZURICH, "one token": b"x"}


@pytest.fixture(scope="module")
def walk_of(target):
    @cache
    def of(name):
        with torch.inference_mode():
            return Walk(target, PROMPTS[name], 64)

    return of


@dataclass(frozen=True)
class Shown(Fixed):
    """Shows the first router one row more, and keeps it or not."""

    keeps: bool = False

    def choose(self, block, ledger):
        rows, _ = Fixed.choose(self, block, ledger)
        return rows, rows + 1

    def correct(self, routed, rows, shown):
        return shown if self.keeps else rows


@pytest.mark.parametrize("drafts", range(16))
@pytest.mark.parametrize("name", ["code", "repetition"])
def test_any_accepted_count_of_any_length_leaves_what_plain_decoding_leaves(
    target, walk_of, name, drafts
):
    walk, prompt = walk_of(name), PROMPTS[name]
    fresh = scripted(target, prompt, walk.ids)
    for accepted in range(drafts + 1):
        rounds = replace(fresh, request=deepcopy(fresh.request), policy=Fixed(drafts + 1))
        rounds.drafter = ScriptedDrafter(script=walk.ids, prompt=len(prompt), right=[accepted])
        entry = drafted(rounds)
        assert len(entry.tokens) == accepted + 1
        assert entry.rows == drafts + 1
        ids = [walk.ids[0], *entry.tokens]
        assert differing(rounds.request.target, walk.states[len(ids) - 1]) == []
        rounds.policy = Fixed(16)
        while len(ids) < accepted + 2 + 32:
            ids += drafted(rounds).tokens
        assert ids == walk.ids[: len(ids)]
        assert differing(rounds.request.target, walk.states[len(ids) - 1]) == []


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 15])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_row_shown_to_the_router_leaves_no_trace(tiny_target, walk_of, mode, rows, keeps):
    target, walk = load(tiny_target, mode=mode), walk_of("code")
    for accepted in (0, rows - 1, rows):
        rounds = scripted(target, PROMPTS["code"], walk.ids, right=[accepted])
        rounds.policy = Shown(rows, keeps)
        entry = drafted(rounds)
        assert entry.rows == rows + keeps
        assert len(entry.tokens) == min(accepted, rows - 1 + keeps) + 1
        state, wanted = rounds.request.target, walk.states[len(entry.tokens)]
        if mode == "exact":
            assert differing(state, wanted) == []
        pairs = zip(state.committed().values(), wanted.committed().values(), strict=True)
        assert all(distance(ours, theirs) < 1e-4 for ours, theirs in pairs)


@pytest.mark.parametrize("correction", ["one", "window"])
@pytest.mark.parametrize("name", ["code", "repetition"])
def test_routing_keeps_and_drops_rows_and_the_text_stays(target, walk_of, name, correction):
    walk, prompt, dice = walk_of(name), PROMPTS[name], random.Random(0)
    right = [dice.choice((0, 1, 2, 4, 15)) for _ in range(64)]
    rounds = scripted(target, prompt, walk.ids, right=right, budget=64)
    stairs = [1.0, 1.3, 1.3, 1.3, 2.2, 2.2, 2.2, 2.2, *[4.0] * 8]
    prices = RoutingCosts(seconds_per_row=0.0, seconds_per_expert=0.5, layers=4, correlation=0.5)
    rounds.policy = Hybrid(
        acceptance=Acceptance(slope=0.0, intercepts=(2.0,) * 15),
        latency=Latency.measured({0: stairs}, plain={0: 0.5}),
        correction=correction_of(correction, prices, torch.device("cpu")),
    )
    ids, _, tally = finished(rounds)
    assert ids == walk.ids[:64]
    assert differing(rounds.request.target, walk.states[63]) == []
    assert int(rounds.policy.correction.kept) > 0
    assert int(rounds.policy.correction.dropped) > 0
    assert len(tally.lengths) >= 2


def test_requests_leave_nothing_behind(tmp_path):
    """Three requests with a drafter that is always wrong; then the fourth equals a cold start."""
    target = load(write_target(tmp_path, max_position_embeddings=1024))
    shared = ZURICH * 2 + b"x" * (600 - 2 * len(ZURICH))
    for tail in (b"one", b"two", b"three"):
        walk = Walk(target, shared + tail, 80)
        rounds = scripted(target, shared + tail, walk.ids, right=[0] * 99, budget=80)
        ids, reason, tally = finished(rounds)
        assert (ids, reason) == (walk.ids[:80], "length")
        assert not any(len(set(ids[i : i + 65])) == 1 for i in range(len(ids) - 64))
        assert (tally.rounds, tally.drafts_accepted) == (79, 0)
        assert differing(rounds.request.target, walk.states[79]) == []
    warm = begin(target, shared + b"four")
    cold = begin(load_again(target), shared + b"four")
    for _ in range(24):
        assert plain(warm).tokens == plain(cold).tokens
    assert differing(warm.request.target, cold.request.target) == []


def load_again(target):
    """The same weights, copied: whatever hides in the first target is not in this one."""
    return deepcopy(target)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("shown", [0, 1])
def test_rows_that_are_not_read_fetch_no_expert(tiny_target, walk_of, mode, rows, shown):
    target, walk, sent = load(tiny_target, mode=mode), walk_of("code"), []
    operations = target.operations

    def counting(x, ids, *rest):
        sent.append(int((ids >= 0).all(1).sum()))
        assert ((ids >= 0).all(1) == (ids >= 0).any(1)).all()
        return operations.experts(x, ids, *rest)

    target = replace(target, operations=replace(operations, experts=counting))
    rounds = scripted(target, PROMPTS["code"], walk.ids)
    if shown and rows < 16:
        rounds.policy = Shown(rows)
    else:
        rounds.policy = Fixed(rows)
    sent.clear()  # of the prompt
    end = int(rounds.request.target.length) + rows
    stale = torch.arange(int(rounds.request.target.length), 2 * PAGE)
    for pages in (rounds.request.target.keys, rounds.request.target.values):
        pages[:, stale // PAGE, :, stale % PAGE] = 3.0
    rounds.drafted_round()
    assert sent == [rows] * len(target.layers)
    for pages in (rounds.request.target.keys, rounds.request.target.values):
        flat = pages.transpose(2, 3).flatten(1, 2)
        assert (flat[:, end : 2 * PAGE] == 3.0).all()
        assert (flat[:, :end] != 3.0).all()


@pytest.mark.parametrize("place", [*range(1, 17), 19, 25, 31, 32, 33])
@pytest.mark.parametrize("name", ["code", "one token"])
def test_a_stop_id_ends_the_text_wherever_it_stands(target, walk_of, name, place):
    walk, prompt = walk_of(name), PROMPTS[name]
    stop = walk.ids[place]
    want = walk.ids[: walk.ids.index(stop) + 1]
    rounds = scripted(target, prompt, walk.ids, stop_ids=(999, stop))
    ids, reason, _ = finished(rounds)
    assert (ids, reason) == (want, "stop")
    assert differing(rounds.request.target, walk.states[len(want) - 1]) == []
    alone = begin(target, prompt, stop_ids=(stop, 999))
    assert finished(alone)[:2] == (want, "stop")
    assert differing(rounds.request.target, alone.request.target) == []


@pytest.mark.parametrize("rows", [2, 3, 5, 9, 16])
def test_either_of_two_stop_ids_ends_a_block_at_any_place(target, walk_of, rows):
    walk, prompt = walk_of("code"), PROMPTS["code"]
    fresh = scripted(target, prompt, walk.ids, rows=rows)
    for place in range(1, rows + 1):
        later = walk.ids[place + 1]  # also stops, but stands behind the first
        want = walk.ids[: min(map(walk.ids.index, (walk.ids[place], later))) + 1]
        for stops in ((walk.ids[place], later), (later, walk.ids[place])):
            request = replace(deepcopy(fresh.request), stop_ids=torch.tensor(stops))
            drafter = ScriptedDrafter(script=walk.ids, prompt=len(prompt))
            rounds = replace(fresh, request=request, drafter=drafter)
            ids, reason, tally = finished(rounds)
            assert (ids, reason) == (want, "stop")
            assert tally.rounds == -(-(len(want) - 1) // rows)
            assert differing(rounds.request.target, walk.states[len(want) - 1]) == []


def test_a_stop_id_from_the_prompts_own_pass_needs_no_round(target, walk_of):
    rounds = scripted(target, PROMPTS["code"], [], stop_ids=(walk_of("code").ids[0],))
    ids, reason, tally = finished(rounds)
    assert (ids, reason, tally.rounds) == (walk_of("code").ids[:1], "stop", 0)


@pytest.mark.parametrize("budget", range(1, 21))
def test_the_budget_is_met_exactly(target, walk_of, budget):
    walk, prompt = walk_of("code"), PROMPTS["code"]
    rounds = scripted(target, prompt, walk.ids, budget=budget)
    ids, reason, tally = finished(rounds)
    assert (ids, reason) == (walk.ids[:budget], "length")
    assert tally.rounds == (budget + 14) // 16
    assert differing(rounds.request.target, walk.states[budget - 1]) == []


def test_a_stop_id_as_the_last_of_the_budget_is_a_stop(target, walk_of):
    walk = walk_of("code")
    place = max(i for i in range(20) if walk.ids.index(walk.ids[i]) == i)
    rounds = scripted(
        target, PROMPTS["code"], walk.ids, stop_ids=(walk.ids[place],), budget=place + 1
    )
    assert finished(rounds)[:2] == (walk.ids[: place + 1], "stop")
