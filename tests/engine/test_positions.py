# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Where each forward stands, for blocks of every size, at odd contexts, up to the last position."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from unittest.mock import patch

import pytest

from hybridspec.models import dflash
from hybridspec.models import target as target_module
from hybridspec.policy.policy import Fixed
from tests.decoding import ZURICH, Walk, begin, differing, finished, load, load_draft
from tests.tiny import ScriptedDrafter, SteeredDrafter, write_target

pytestmark = pytest.mark.usefixtures("inference")


@pytest.mark.parametrize("context", [129, 4097])
def test_blocks_of_any_size_decode_at_odd_contexts(tmp_path, tiny_drafter, context):
    """To the last position, with the drafter's own drafts and with right ones."""
    positions = context + 40
    target = load(write_target(tmp_path, max_position_embeddings=positions))
    drafter, prompt = load_draft(tiny_drafter, target), (ZURICH * 11)[:context]
    walk = Walk(target, prompt, 40)
    fresh = begin(target, prompt, drafter=drafter, budget=41)
    for block in (2, 3, 4, 5, 8, 16):
        own = replace(drafter, config=replace(drafter.config, block_size=block))
        right = ScriptedDrafter(script=walk.ids, prompt=context, block_size=block)
        for proposer in (own, right):
            request = deepcopy(fresh.request)
            rounds = replace(fresh, drafter=proposer, policy=Fixed(block), request=request)
            ids, _, tally = finished(rounds)
            assert ids == walk.ids
            assert tally.lengths.keys() == {block}
            assert tally.rounds == -(-40 // block) or proposer is own
            assert int(request.target.length) == positions
            assert differing(request.target, walk.states[40]) == []


@contextmanager
def places(module) -> Iterator[list[tuple[int, int]]]:
    """First position and number of the rows of each forward in a module, by their rotary angles."""
    seen, rotate = [], module.rotate

    def spying(x, angles):
        seen.append((angles.storage_offset() // angles.stride(0), len(angles)))
        return rotate(x, angles)

    with patch.object(module, "rotate", spying):
        yield seen


def test_every_forward_stands_where_the_last_committed_row_ended(target, drafter):
    """Whatever is accepted, target and drafter go on at the committed length, without a gap."""
    prompt = b"def area(r):\n    return"
    walk = Walk(target, prompt, 48)
    steered = SteeredDrafter(script=walk.ids, prompt=len(prompt))
    steered.real = drafter
    fresh = begin(target, prompt, drafter=steered)
    for accepted in range(16):
        steered.rounds, steered.right = 0, [accepted, 0, accepted]
        rounds = replace(fresh, request=deepcopy(fresh.request))
        committed, injected = len(prompt), 0
        for right in steered.right:
            with places(target_module) as read, places(dflash) as drafted:
                rounds.drafted_round()
            assert set(read) == {(committed, 16)}
            assert set(drafted) == {(injected, committed - injected), (committed, 16)}
            injected, committed = committed, committed + right + 1
            assert int(rounds.request.target.length) == committed
