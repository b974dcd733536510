# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Whatever is accepted of a block, the state is that of plain decoding, and of a fresh prefill."""

import statistics
from copy import deepcopy
from dataclasses import fields
from functools import cache
from unittest.mock import patch

import pytest
import torch

from hybridspec.bench.shape import shape_directory
from hybridspec.models import target as forward
from hybridspec.models.state import TargetState
from hybridspec.models.target_config import TargetConfig
from tests.decoding import (
    CPU,
    ZURICH,
    begin,
    commit,
    differing,
    load,
    logits_of,
    plain,
    prefilled,
    read_block,
)
from tests.tiny import FAMILIES, VOCAB, write_target
from tests.tolerances import LOGITS, PREFILL, PREFILL_MEDIAN, ROUTER_GAP, distance

LENGTHS = [1, 2, 3, 5, 8, 16]
TEXT = b"def walk(tree, depth=0):\n    for node in tree.children:\n        yield depth, node\n"
PROMPTS = {
    "one token": TEXT[:1],
    "two tokens": TEXT[:2],
    "three tokens": TEXT[:3],
    "63 tokens": TEXT[:63],
    "64 tokens": TEXT[:64],
    "65 tokens": TEXT[:65],
    "repetition": ZURICH,
}
AFTER = 12
"""tokens to go on with after a block"""


class Walk:
    """Plain decoding of one prompt: the state after each step, and what it emits."""

    def __init__(self, target, prompt):
        rounds = begin(target, prompt)
        self.ids, self.states = [int(rounds.request.ledger.anchor)], []
        self.taps = []
        for _ in range(16 + AFTER + 1):
            if len(self.states) <= 16:
                self.states.append(deepcopy(rounds.request.target))
                again = deepcopy(rounds.request.target)
                self.taps.append(read_block(target, self.ids[-1:], 1, again).taps[0])
            self.ids += plain(rounds).tokens


@pytest.fixture(scope="module")
def walk_of(target):
    @cache
    def of(name):
        with torch.inference_mode():
            return Walk(target, PROMPTS[name])

    return of


@pytest.fixture(scope="module")
def fresh_of(target, walk_of):
    """State and next logits after a prefill of a prompt and the first `rows` tokens after it."""

    @cache
    def of(name, rows):
        text = [*PROMPTS[name], *walk_of(name).ids[:rows]]
        fresh = prefilled(target, text)
        after = logits_of(target, read_block(target, [65], 1, deepcopy(fresh)))[0]
        return fresh, after, near_ties(target, text)

    return of


def near_ties(target, text):
    """Positions at which some router's k-th and next expert lie closer than rounding may move."""
    gaps = []

    def spying(logits, k):
        best = logits.sort(-1, descending=True).values
        gaps.append(best[:, k - 1] - best[:, k])
        return route(logits, k)

    route = forward.route
    with patch.object(forward, "route", spying):
        prefilled(target, text, split=len(text))
    assert len(gaps) == len(target.layers)
    return (torch.stack(gaps).amin(0) < ROUTER_GAP).nonzero().flatten().tolist()


def block_of(ids, accepted):
    """A block of 16 whose first `accepted` drafts are right and whose others are wrong."""
    right = ids[: accepted + 1]
    return [*right, *((i + 5) % VOCAB for i in ids[len(right) : 16])]


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("name", PROMPTS)
def test_every_accepted_prefix_leaves_the_state_of_plain_decoding(target, walk_of, name, rows):
    walk = walk_of(name)
    for kept in range(1, rows + 1):
        state = deepcopy(walk.states[0])
        reading = read_block(target, block_of(walk.ids, kept - 1), rows, state)
        assert differing(state, walk.states[0]) == [], "reading alone moved the state"
        assert reading.tokens[:kept].tolist() == walk.ids[1 : kept + 1]
        assert torch.equal(reading.taps[:kept], torch.stack(walk.taps[:kept]))
        commit(state, kept)
        assert differing(state, walk.states[kept]) == []


@pytest.mark.parametrize(
    "kinds", ["full linear linear full", "linear linear linear linear", "full full full full"]
)
def test_layers_may_stand_in_any_order(tmp_path, kinds):
    kinds = [f"{kind}_attention" for kind in kinds.split()]
    target = load(write_target(tmp_path, layer_types=kinds))
    walk = Walk(target, TEXT[:20])
    for kept in (1, 3, 5):
        state = deepcopy(walk.states[0])
        read_block(target, block_of(walk.ids, kept - 1), 5, state)
        commit(state, kept)
        assert differing(state, walk.states[kept]) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("heads", [(2, 6, 16, 24), (3, 3, 8, 20), (1, 4, 20, 8), (4, 4, 16, 16)])
def test_a_state_moves_whole_whatever_its_heads_and_widths(tmp_path, family, heads):
    """Counts of one kind taken for those of another, where heads or widths differ."""
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    sizes = {f"linear_{name}": size for name, size in zip(names, heads, strict=True)}
    target = load(write_target(tmp_path, family=family, **sizes))
    walk = Walk(target, TEXT[:20])
    H, HV, K, V = heads
    assert walk.states[0].recurrent.shape == (3, HV, K, V)
    assert walk.states[0].conv.shape == (3, 3, 2 * H * K + HV * V)
    for kept in (1, 2, 5, 16):
        state = deepcopy(walk.states[0])
        read_block(target, block_of(walk.ids, kept - 1), 16, state)
        commit(state, kept)
        assert differing(state, walk.states[kept]) == []


@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("name", ["two tokens", "65 tokens", "repetition"])
def test_the_next_tokens_are_those_of_plain_decoding(target, walk_of, name, rows):
    walk = walk_of(name)
    for kept in range(1, rows + 1):
        rounds = begin(target, PROMPTS[name])
        state = rounds.request.target
        read_block(target, block_of(walk.ids, kept - 1), rows, state)
        commit(state, kept)
        rounds.request.ledger.anchor.fill_(walk.ids[kept])
        ids = [plain(rounds).tokens[0] for _ in range(AFTER)]
        assert ids == walk.ids[kept + 1 : kept + 1 + AFTER]


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("name", PROMPTS)
def test_every_accepted_prefix_leaves_the_state_of_a_fresh_prefill(
    tiny_target, walk_of, fresh_of, name, rows, mode
):
    walk, reader = walk_of(name), load(tiny_target, mode=mode)
    compared = 0
    for kept in range(1, rows + 1):
        fresh, after, skipped = fresh_of(name, kept)
        if skipped:  # positions where the router nearly ties
            continue
        compared += 1
        state = deepcopy(walk.states[0])
        read_block(reader, block_of(walk.ids, kept - 1), rows, state)
        commit(state, kept)
        logits = logits_of(reader, read_block(reader, [65], 1, deepcopy(state)))[0]
        assert (logits - after).abs().max() < LOGITS * max(1.0, float(after.abs().max()))
        ours, theirs = state.committed(), fresh.committed()
        assert ours.pop("length") == theirs.pop("length")
        apart = {tensor: distance(ours[tensor], theirs[tensor]) for tensor in ours}
        assert max(apart.values()) < PREFILL, apart
        assert statistics.median(apart.values()) < PREFILL_MEDIAN, apart
    assert compared > rows // 2


@pytest.mark.parametrize("split", [1, 2, 7, 63, 64])
@pytest.mark.parametrize("length", [2, 20, 63, 64, 65, 130])
def test_prefill_in_pieces_leaves_the_state_of_prefill_at_once(target, length, split):
    text = list((TEXT * 2)[:length])
    whole, pieces = prefilled(target, text, split=length), prefilled(target, text, split=split)
    ours, theirs = pieces.committed(), whole.committed()
    assert int(ours.pop("length")) == int(theirs.pop("length")) == length
    apart = {name: distance(ours[name], theirs[name]) for name in ours}
    assert max(apart.values()) < PREFILL, apart


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [(12, [8]), (12, [1] * 8), (5, [7, 8]), (1, [16, 3]), (2, [1, 15, 2]), (60, [3, 3, 3, 1])],
)
def test_prefill_and_rounds_read_what_prefill_reads(tiny_target, prompt, blocks, mode):
    target = load(tiny_target, mode=mode)
    text = list(TEXT[: prompt + sum(blocks)])
    whole = target.read_prompt(torch.tensor(text), TargetState.empty(target.config, 100, CPU))
    tokens = logits_of(target, whole).argmax(-1)
    state, place = prefilled(target, text[:prompt]), prompt
    for rows in blocks:
        block = (text[place : place + rows] + [0] * 16)[:16]
        reading = read_block(target, block, rows, state)
        assert distance(reading.taps[:rows], whole.taps[place : place + rows]) < PREFILL
        assert torch.equal(reading.tokens[:rows], tokens[place : place + rows])
        commit(state, rows)
        place += rows
    assert int(state.length) == len(text)


def test_committed_names_every_tensor_that_may_be_rolled_back(target):
    state = prefilled(target, list(TEXT[:9]))
    names = {f"{part}.{layer}" for part in ("conv", "recurrent") for layer in range(3)}
    assert state.committed().keys() == names | {"length", "keys.0", "values.0"}
    assert state.committed()["keys.0"].shape[0] == 9


def test_records_of_a_block_take_less_memory_than_one_more_state():
    """At the sizes of Qwen3.6-35B-A3B; a state after each row would take sixteen."""
    config = TargetConfig.load(shape_directory("qwen3.6-35b-a3b") / "target")
    state = TargetState.empty(config, 100, torch.device("meta"), dtype=torch.bfloat16)
    records = [getattr(state.records, part.name) for part in fields(state.records)]
    assert sum(tensor.nbytes for tensor in records) < state.recurrent.nbytes / 2
