# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Captured rounds of the embedded pair in exact mode, against plain decoding: text and every state.

On a CPU the same rounds run uncaptured, and fewer of them.
"""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.engine import graph
from hybridspec.policy.policy import Fixed
from tests.decoding import differing, finished
from tests.shipped import (
    DEVICES,
    Diced,
    begun,
    begun_plain,
    count,
    prompt_of,
    put_back,
    shipped,
    started,
    unequal,
)

pytestmark = pytest.mark.usefixtures("inference")
ROUNDS = {"cpu": 50, "cuda": 2000}
BUDGET = {"cpu": 80, "cuda": 600}
REPEATS = {"cpu": 3, "cuda": 50}


@pytest.fixture(scope="module", params=DEVICES)
def pair(request):
    return shipped(request.param)


@pytest.fixture(scope="module")
def device(pair):
    return pair.target.head.device


@pytest.fixture(scope="module")
def prompt(pair):
    return prompt_of(pair, 0, 100)


@pytest.fixture(scope="module")
@torch.inference_mode()
def plain(pair, prompt, device):
    """Text and last state of plain decoding."""
    rounds = begun_plain(pair, prompt, budget=BUDGET[device.type])
    ids, _, _ = finished(rounds)
    assert len(set(ids)) > 30
    return ids, rounds.request.target


@pytest.fixture
def recordings(monkeypatch, device):
    """One entry for each graph that is recorded; on a CPU a recording repeats its run."""
    record, made = graph.recorded, []

    def counting(run):
        made.append(run)
        return record(run) if device.type == "cuda" else SimpleNamespace(replay=run)

    monkeypatch.setattr(graph, "recorded", counting)
    return made


def as_on_a_gpu(rounds):
    """Rounds that record, also on a CPU."""
    for kind in (rounds._drafted, rounds._plain, rounds._inject):
        kind.device = torch.device("cuda")
    return rounds


def texts(rounds, plain, wanted):
    """Texts of one request, put back to its prompt after each, until so many rounds were taken."""
    opened, taken = deepcopy(rounds.request), 0
    while taken < wanted:
        put_back(rounds.request, opened)
        ids, reason, tally = finished(rounds, ahead=1)
        assert (ids, reason) == (plain[0], "length")
        assert differing(rounds.request.target, plain[1]) == []
        taken += tally.rounds
        yield tally


def test_random_lengths_on_one_graph_write_what_plain_decoding_writes(
    pair, device, prompt, plain, recordings
):
    """From the smallest length to the largest at once, then at random; texts end and begin anew."""
    policy = Diced(MAX_ROWS, device=device)
    rounds = as_on_a_gpu(begun(pair, prompt, policy, budget=BUDGET[device.type]))
    tallies = list(texts(rounds, plain, ROUNDS[device.type]))
    lengths = set().union(*(tally.lengths for tally in tallies))
    assert lengths <= set(range(1, MAX_ROWS + 1))
    assert {1, MAX_ROWS} <= lengths
    assert len(lengths) == MAX_ROWS or device.type == "cpu"
    assert sum(tally.drafts_accepted for tally in tallies) > len(tallies) * len(plain[0]) // 10
    assert len(recordings) == 1


def test_kinds_of_round_that_alternate_are_recorded_once_each(
    pair, device, prompt, plain, recordings
):
    """Drafted rounds of every length, plain ones, and injections where plain ones go on."""
    policy = Diced(MAX_ROWS, device=device, drafts=0.5, seed=1)
    rounds = as_on_a_gpu(begun(pair, prompt, policy, budget=BUDGET[device.type]))
    after_each, kinds = [], set()
    for tally in texts(rounds, plain, 1500 if device.type == "cuda" else 100):
        after_each.append((tally.rounds, len(recordings)))
        kinds |= {"drafted"} if tally.rounds_drafted else set()
        kinds |= {"plain"} if tally.rounds > tally.rounds_drafted else set()
    assert kinds == {"drafted", "plain"}
    assert after_each[0][0] >= 40
    assert len(after_each) > 1
    assert {recorded for _, recorded in after_each} == {3}  # drafted, plain, injection


def test_no_more_tap_rows_wait_than_one_injection_takes(pair, device, prompt):
    """However long plain rounds go on, and whenever drafts come back."""
    policy = Fixed(MAX_ROWS, device=device)
    rounds = begun(pair, prompt, policy, budget=200)
    request, injections = rounds.request, 0
    for stretch in (MAX_ROWS, 1, 2 * MAX_ROWS + 3):
        for _ in range(stretch):
            before = int(request.draft.injected)
            rounds.plain_round()
            injections += int(request.draft.injected) > before
            assert int(request.draft.waiting) <= MAX_ROWS
            known = int(request.draft.injected) + int(request.draft.waiting)
            assert known == int(request.ledger.length)
        rounds.drafted_round()
    assert injections >= 4  # after each drafted round, and every 16 plain ones


@pytest.mark.parametrize("block", [2, 7, MAX_ROWS])
def test_a_drafter_of_any_block_decodes_at_its_smallest_and_largest_length(
    pair, device, prompt, plain, block
):
    drafter = replace(pair.drafter, config=replace(pair.drafter.config, block_size=block))
    if device.type == "cuda":
        drafter = replace(drafter, rows=count(block, device))
    policy = Diced(block, device=device)
    rounds = begun(replace(pair, drafter=drafter), prompt, policy, budget=BUDGET[device.type] // 2)
    ids, _, tally = finished(rounds, ahead=1)
    assert ids == plain[0][: BUDGET[device.type] // 2]
    assert {1, block} <= set(tally.lengths) <= set(range(1, block + 1))
    assert tally.drafts_accepted > 0


def test_the_same_text_again_and_again_is_the_same_bit_for_bit(pair, device, prompt):
    """The prompt is read anew each time, and the rounds' graph goes on from what it left."""
    rounds = begun(pair, prompt, Fixed(7, device=device), budget=64)
    first = None
    for _ in range(REPEATS[device.type]):
        put_back(rounds.request, started(pair, prompt, budget=64))
        ids, _, tally = finished(rounds)
        found = ids, tally.lengths, deepcopy(rounds.request)
        first = first or found
        assert found[:2] == first[:2]
        assert unequal(found[2], first[2]) == []
    assert len(set(first[0])) > 8
