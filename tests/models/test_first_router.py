# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The way to the first router ends in the first layer that has one, wherever that is."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from tests.decoding import (
    begin,
    commit,
    differing,
    drafted,
    load_tapped,
    plain,
    prefilled,
    read_block,
    read_text,
)
from tests.tiny import ScriptedDrafter, write_target
from tests.tolerances import PREFILL, distance

GDN, ATTENTION = "linear_attention", "full_attention"
TEXT = list(b"def area(r):\n    return 3 * r * r\n")
AFTER = list(b"def circle(x): y")
"""16 tokens"""
MODELS = {
    "the first layer": {},
    "after a GDN layer": {"mlp_only_layers": [0]},
    "after an attention layer": {
        "mlp_only_layers": [0],
        "layer_types": [ATTENTION, GDN, GDN, ATTENTION],
    },
    "after both kinds": {"mlp_only_layers": [0, 1], "layer_types": [GDN, ATTENTION, GDN, GDN]},
    "in an attention layer": {
        "mlp_only_layers": [0, 1],
        "layer_types": [GDN, GDN, ATTENTION, GDN],
    },
    "every other layer": {"decoder_sparse_step": 2},
    "the last layer": {"mlp_only_layers": [0, 1, 2]},
    "the last layer, by the step": {"decoder_sparse_step": 4},
}
ROUTERS = dict(zip(MODELS, (0, 1, 1, 2, 2, 1, 3, 3), strict=True))
"""the layer of the first router"""


@pytest.fixture(scope="module", params=MODELS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def directory(name, tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("first"), family="qwen3_next", **MODELS[name])


@pytest.fixture(params=["exact", "fast"])
def target(request, directory):
    return load_tapped(directory, mode=request.param)


def is_exact(target):
    """Exact mode gives every operation all rows of a block."""
    return target.operations.width(1) == MAX_ROWS


def count(rows):
    return torch.tensor(rows, dtype=torch.int32)


def route_and_read(target, state, shown, kept):
    """Show `shown` rows of AFTER to the first router and read `kept` of them on."""
    routed = target.read_to_router(torch.tensor(AFTER), count(shown), state)
    return routed, target.read_on(routed, count(kept), state)


def steps(target, state):
    """Plain decoding over AFTER: readings and the states after each."""
    readings, states = [], []
    for token in AFTER:
        readings.append(read_block(target, [token], 1, state))
        commit(state, 1)
        states.append(deepcopy(state))
    return readings, states


def watched(target):
    """The target with a log of what each layer's mixer and experts are given."""
    operations, log = target.operations, []

    def verify(*arguments):
        log.append(("gdn", int(arguments[-1])))
        return operations.gdn_verify(*arguments)

    def experts(x, ids, *rest):
        log.append(("experts", int((ids >= 0).all(1).sum())))
        return operations.experts(x, ids, *rest)

    return replace(target, operations=replace(operations, gdn_verify=verify, experts=experts)), log


def test_no_expert_runs_before_it_and_no_layer_runs_twice(name, target):
    target, log = watched(target)
    number, kinds = ROUTERS[name], target.config.layer_types
    state = prefilled(target, TEXT)
    log.clear()
    routed = target.read_to_router(torch.tensor(AFTER), count(5), state)
    assert target.first_moe[0] == number
    assert log == [("gdn", 5)] * kinds[: number + 1].count(GDN)
    assert sorted(routed.tapped) == list(range(number))
    assert (routed.expert_ids[:5] >= 0).all()
    assert (routed.expert_ids[5:] == -1).all()
    log.clear()
    target.read_on(routed, count(3), state)
    assert [entry for entry in log if entry[0] == "gdn"] == [("gdn", 3)] * kinds[
        number + 1 :
    ].count(GDN)
    assert [entry for entry in log if entry[0] == "experts"] == [("experts", 3)] * sum(
        target.config.routed_layers
    )


@pytest.mark.parametrize("extra", [0, 1, 2, 9])
@pytest.mark.parametrize("kept", [1, 2, 5, 7])
def test_extra_rows_shown_leave_no_trace(target, kept, extra):
    """Whatever is accepted: readings, taps and every state tensor are those of no extra row."""
    start = prefilled(target, TEXT)
    shown_none, shown_some = deepcopy(start), deepcopy(start)
    _, want = route_and_read(target, shown_none, kept, kept)
    _, found = route_and_read(target, shown_some, kept + extra, kept)
    assert differing(shown_some, start) == [], "reading alone moved the state"
    assert found.taps.shape == want.taps.shape
    if is_exact(target):
        assert torch.equal(found.taps[:kept], want.taps[:kept])
    assert distance(found.taps[:kept], want.taps[:kept]) < PREFILL
    assert torch.equal(found.tokens[:kept], want.tokens[:kept])
    for accepted in range(1, kept + 1):
        ours, theirs = deepcopy(shown_some), deepcopy(shown_none)
        commit(ours, accepted)
        commit(theirs, accepted)
        if is_exact(target):
            assert differing(ours, theirs) == []
        for tensor, value in theirs.committed().items():
            assert distance(ours.committed()[tensor], value) < PREFILL


def test_a_block_reads_what_plain_decoding_reads(target):
    start = prefilled(target, TEXT)
    readings, states = steps(target, deepcopy(start))
    for kept in (1, 2, 3, 8, 15):
        state = deepcopy(start)
        _, found = route_and_read(target, state, kept + 1, kept)
        commit(state, kept)
        want = torch.stack([reading.taps[0] for reading in readings[:kept]])
        if is_exact(target):
            assert torch.equal(found.taps[:kept], want)
            assert differing(state, states[kept - 1]) == []
        assert distance(found.taps[:kept], want) < PREFILL
        for tensor, value in states[kept - 1].committed().items():
            assert distance(state.committed()[tensor], value) < PREFILL


def test_a_block_reads_what_a_prefill_reads(target):
    """Another program: prompts go through whole layers, without a stop at the router."""
    state = prefilled(target, TEXT)
    fresh = prefilled(target, TEXT + AFTER[:7])
    whole = read_text(target, torch.tensor(TEXT + AFTER[:7])).taps[-7:]
    _, found = route_and_read(target, state, 9, 7)
    layers = len(target.layers)
    for tap, want in zip(found.taps[:7].chunk(layers, 1), whole.chunk(layers, 1), strict=True):
        assert distance(tap, want) < PREFILL
    commit(state, 7)
    for tensor, value in fresh.committed().items():
        assert distance(state.committed()[tensor], value) < PREFILL


def test_drafted_rounds_emit_the_tokens_of_plain_decoding(target):
    prompt, wanted = bytes(TEXT), 60
    alone = begin(target, prompt)
    ids = [int(alone.request.ledger.anchor)]
    while len(ids) < wanted:
        ids += plain(alone).tokens
    drafter = ScriptedDrafter(script=ids, prompt=len(prompt), right=[0, 3, 15, 1, 7, 2, 14, 5])
    rounds = begin(target, prompt, drafter=drafter)
    found = [int(rounds.request.ledger.anchor)]
    while len(found) < wanted - 16:
        found += drafted(rounds).tokens
    assert found == ids[: len(found)]
