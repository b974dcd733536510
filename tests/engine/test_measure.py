# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Measuring a live request: what is timed, and that nothing moves."""

from copy import deepcopy
from dataclasses import fields

import pytest
import torch

from hybridspec.core.records import Block
from hybridspec.engine.measure import REPEATS, after_tokens, measure, measure_routing
from tests.decoding import begin, differing, load, plain_ids
from tests.tiny import ScriptedDrafter

pytestmark = pytest.mark.usefixtures("inference")
PROMPT, BLOCK = b"def area(r):\n    return", 5


def test_drafted_rounds_of_every_length_and_plain_steps_are_timed_and_nothing_moves(tiny_target):
    target = load(tiny_target)
    drafter = ScriptedDrafter(
        script=plain_ids(target, PROMPT, 20), prompt=len(PROMPT), block_size=BLOCK
    )
    rounds = begin(target, PROMPT, drafter=drafter)
    before, ledger = deepcopy(rounds.request.target), deepcopy(rounds.request.ledger)
    read: list[tuple[bool, int]] = []
    drafted = 0

    def spy(tokens, rows, state):
        nonlocal drafted
        read.append((drafter.rounds > drafted, int(rows)))
        drafted = drafter.rounds
        return type(target).read_to_router(target, tokens, rows, state)

    rounds.target = Spied(target, spy)
    latency = measure(rounds, BLOCK)
    assert differing(rounds.request.target, before) == []
    for field in fields(ledger):
        assert torch.equal(getattr(rounds.request.ledger, field.name), getattr(ledger, field.name))
    kinds = [(False, 1), *((True, rows) for rows in range(1, BLOCK + 1))]
    assert read == kinds * (REPEATS + 1)
    assert list(latency.seconds) == list(latency.plain) == [len(PROMPT)]
    assert len(latency.seconds[len(PROMPT)]) == BLOCK
    assert latency.plain[len(PROMPT)] > 0


class AnyDrafter:
    """Drafts the same after any anchor."""

    def empty_state(self, positions):
        return positions

    def take(self, taps, state, rows=None):
        pass

    def inject(self, state):
        pass

    def propose(self, anchor, state):
        tokens = torch.cat((anchor.view(1), torch.arange(BLOCK - 1)))
        return Block(tokens=tokens, log_odds=torch.zeros(BLOCK - 1))


class Spied:
    """A target whose way to the router is watched."""

    def __init__(self, target, read_to_router):
        self.read_to_router, self.read_on = read_to_router, target.read_on


def test_rows_and_experts_are_priced_in_every_length_and_nothing_moves(tiny_target):
    target = load(tiny_target)
    rounds = begin(target, PROMPT, drafter=AnyDrafter())
    before, ledger = deepcopy(rounds.request.target), deepcopy(rounds.request.ledger)
    assert measure_routing(rounds, BLOCK, []) is None  # this target counts no experts
    read: list[tuple[int, bool, int]] = []

    def spy(tokens, rows, state):
        read.append((int(tokens[0]), len(set(tokens.tolist())) == 1, int(rows)))
        return type(target).read_to_router(target, tokens, rows, state)

    spied = Spied(target, spy)
    spied.fetched = torch.tensor([2, 3], dtype=torch.int32)
    rounds.target = spied
    moves = after_tokens(rounds, [5, 9, 9, 6, 9, 9], 2)
    found = measure_routing(rounds, BLOCK, moves)
    assert found is not None
    assert found.layers == 2
    drafted = [
        (anchor, is_repeated, rows)
        for anchor in (5, 6)
        for is_repeated in (False, True)
        for rows in range(1, BLOCK + 1)
    ]
    assert read == drafted
    assert differing(rounds.request.target, before) == []
    for field in fields(ledger):
        assert torch.equal(getattr(rounds.request.ledger, field.name), getattr(ledger, field.name))
