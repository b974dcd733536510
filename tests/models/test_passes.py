# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Whole passes of the embedded target in exact mode: a row depends on nothing but what precedes it.

The judge is plain decoding, one row a pass.
"""

from copy import deepcopy

import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.graph import Captured
from tests.decoding import differing
from tests.shipped import DEVICES, count, kept, move, prompt_of, read, shipped, tapped

pytestmark = pytest.mark.usefixtures("inference")
CONTEXTS = [5, 120, 250]
"""the second block crosses a page, the third reads two whole ones"""
REPEATS = {"cpu": 5, "cuda": 50}


@pytest.fixture(scope="module", params=DEVICES)
def target(request):
    return tapped(request.param)


@pytest.fixture(scope="module")
def text():
    return prompt_of(shipped("cpu"), 0)


@pytest.fixture(scope="module", params=CONTEXTS)
@torch.inference_mode()
def walk(request, target, text):
    return Walk(target, text, request.param)


class Walk:
    """A context, a block behind it, and what plain decoding leaves of each of its rows."""

    def __init__(self, target, text, context):
        device = target.head.device
        self.state = target.empty_state(context + 2 * MAX_ROWS)
        target.read_prompt(torch.tensor(text[:context], device=device), self.state)
        self.block = torch.tensor(text[context : context + MAX_ROWS], device=device)
        state, one, alone, self.states = deepcopy(self.state), count(1, device), [], []
        for row in range(MAX_ROWS):
            reading = read(target, self.block[row : row + 1], one, state)
            alone.append(kept(reading, state, 1))
            move(state, 1)
            self.states.append(deepcopy(state))
        self.rows = {name: torch.cat([row[name] for row in alone]) for name in alone[0]}

    def parting(self, reading, state, rows):
        """Names of what is not that of plain decoding."""
        found = kept(reading, state, rows)
        return [name for name in found if not torch.equal(found[name], self.rows[name][:rows])]


@pytest.mark.parametrize("sliced", [False, True])
def test_a_row_of_a_pass_of_any_length_equals_plain_decoding_bit_for_bit(target, walk, sliced):
    """Sliced: of a block that is no longer than the rows that are read."""
    for rows in range(1, MAX_ROWS + 1):
        state, block = deepcopy(walk.state), walk.block[:rows] if sliced else walk.block
        reading = read(target, block, count(rows, block.device), state)
        assert walk.parting(reading, state, rows) == [], rows
        assert differing(state, walk.state) == [], rows
        move(state, rows)
        assert differing(state, walk.states[rows - 1]) == [], rows


@pytest.mark.parametrize("first", [1, MAX_ROWS])
def test_a_pass_recorded_at_one_length_serves_every_length(target, walk, first):
    """Every buffer is as large as the largest length needs it."""
    state, rows, readings = deepcopy(walk.state), count(first, walk.block.device), []
    run = Captured(lambda: readings.append(read(target, walk.block, rows, state)), rows.device)
    run.prepare()
    for length in (first, MAX_ROWS, 1, 9, *range(2, MAX_ROWS)):
        rows.fill_(length)
        run()
        assert walk.parting(readings[-1], state, length) == [], length
    assert differing(state, walk.state) == []
    assert len(readings) == 2 or rows.device.type == "cpu"  # compiled, recorded


def test_the_same_pass_again_and_again_gives_the_same_bits(target, walk):
    device = walk.block.device
    for _ in range(REPEATS[device.type]):
        state = deepcopy(walk.state)
        reading = read(target, walk.block, count(MAX_ROWS, device), state)
        assert walk.parting(reading, state, MAX_ROWS) == []
