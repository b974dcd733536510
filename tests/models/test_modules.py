# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Module by module: in exact mode row i of any block is what one row alone gives, bit for bit."""

from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from hybridspec import LLM
from hybridspec.core.options import MAX_ROWS
from hybridspec.models import target as target_module
from tests.decoding import ZURICH, begin, commit, load, read_block
from tests.tiny import write_target

pytestmark = pytest.mark.usefixtures("inference")

MODULES = ("attend", "route", "read_head", "gated_rms_norm")
"""names in the target's module; GDN and the experts belong to the mode"""


def outputs(target, tokens, rows, state):
    """What each module returns while a block is read: by name, one tensor a call and part."""
    seen = {}

    def spying(name, function):
        def spy(*arguments):
            found = function(*arguments)
            parts = found if isinstance(found, tuple) else (found,)
            seen.setdefault(name, []).extend(part.clone() for part in parts)
            return found

        return spy

    operations = replace(
        target.operations,
        **{n: spying(n, getattr(target.operations, n)) for n in ("gdn_verify", "experts")},
    )
    target = replace(target, operations=operations)
    with ExitStack() as stack:
        for name in MODULES:
            spy = spying(name, getattr(target_module, name))
            stack.enter_context(patch.object(target_module, name, spy))
        seen["taps"] = [read_block(target, tokens, rows, state).taps]
    return seen


@pytest.mark.parametrize("pair", ["tiny", "embedded"])
def test_row_i_of_a_block_equals_the_row_alone_in_every_module(tiny_target, pair):
    target = load(tiny_target) if pair == "tiny" else LLM(policy="fixed").pair.target
    rounds = begin(target, ZURICH[:100])
    start, tokens, alone = deepcopy(rounds.request.target), [], []
    for _ in range(MAX_ROWS):
        tokens.append(int(rounds.request.ledger.anchor))
        alone.append(outputs(target, tokens[-1:], 1, deepcopy(rounds.request.target)))
        rounds.plain_round()
    for rows in range(1, MAX_ROWS + 1):
        together = outputs(target, tokens, rows, deepcopy(start))
        assert together.keys() == {*MODULES, "gdn_verify", "experts", "taps"}
        for name, parts in together.items():
            for number, part in enumerate(parts):
                want = torch.stack([row[name][number][0] for row in alone[:rows]])
                assert torch.equal(part[:rows], want), (name, number, rows)


@pytest.fixture
def ties(monkeypatch):
    """Experts 2i and 2i + 1 always have the same logit: every choice is a tie."""
    route = target_module.route
    monkeypatch.setattr(
        target_module, "route", lambda x, k: route(x[:, ::2].repeat_interleave(2, dim=1), k)
    )


@pytest.mark.usefixtures("ties")
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_of_tied_experts_the_lowest_wins_in_blocks_of_every_length(tmp_path, mode):
    """Three of six pairs' twelve: a whole pair, and the lower half of another."""
    target = load(write_target(tmp_path, num_experts=12, num_experts_per_tok=3), mode=mode)
    rounds = begin(target, ZURICH[:100])
    start, tokens, alone = deepcopy(rounds.request.target), [], []
    for _ in range(MAX_ROWS):
        tokens.append(int(rounds.request.ledger.anchor))
        alone.append(chosen(target, tokens[-1:], 1, deepcopy(rounds.request.target)))
        rounds.plain_round()
    for rows in range(1, MAX_ROWS + 1):
        together = chosen(target, tokens, rows, deepcopy(start))
        for layer, ids in enumerate(together):
            assert ids[:rows].tolist() == [row[layer][0].tolist() for row in alone[:rows]]
            for first, second, third in ids[:rows].tolist():
                assert (first % 2, second, third % 2) == (0, first + 1, 0)


def chosen(target, tokens, rows, state):
    """Experts of each row, layer by layer: ids and weights by turns, of which the ids."""
    return outputs(target, tokens, rows, state)["route"][::2]


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_same_block_read_fifty_times_gives_the_same_bits(tiny_target, mode):
    target = load(tiny_target, mode=mode)
    rounds = begin(target, ZURICH)
    block = [int(rounds.request.ledger.anchor), *range(60, 75)]
    first = None
    for _ in range(50):
        state = deepcopy(rounds.request.target)
        found = outputs(target, block, MAX_ROWS, state)
        commit(state, 9)
        found["state"] = [x.clone() for x in state.committed().values()]
        first = first or found
        for name, parts in found.items():
            for ours, theirs in zip(parts, first[name], strict=True):
                assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("taps", [2, 3, 8, 16, 20])
def test_a_convolution_of_any_width_is_rolled_back_at_every_row(tmp_path, taps):
    """Its history may be shorter or longer than the block, and than what was accepted."""
    target = load(write_target(tmp_path, linear_conv_kernel_dim=taps))
    rounds = begin(target, b"def area")
    start, tokens = deepcopy(rounds.request.target), []
    for kept in range(1, MAX_ROWS + 1):
        tokens.append(int(rounds.request.ledger.anchor))
        rounds.plain_round()
        state = deepcopy(start)
        read_block(target, [*tokens, *[5] * (MAX_ROWS - kept)], MAX_ROWS, state)
        commit(state, kept)
        for name, want in rounds.request.target.committed().items():
            assert torch.equal(state.committed()[name], want), (name, kept)
