# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The target in launches against its reference."""

from copy import deepcopy

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.bench.heard_fused import HeardFusedTarget
from hybridspec.core.errors import OptionError
from hybridspec.engine.graph import recorded
from hybridspec.models.fused import FusedTarget
from tests.decoding import load
from tests.kernels.gdn_cases import EVERYWHERE, ON_CUDA
from tests.models.fused_cases import (
    LAYERS,
    TARGET,
    commit,
    few_programs,  # noqa: F401
    read,
    twins,
)
from tests.tiny import write_target
from tests.tolerances import FUSED, distance

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("few_programs"),
]
PROMPT = list(b"def ")
BLOCK = list(b"area(r): return ")
MODES = ["exact", "fast"]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(
    ("mode", "layers"), [("exact", "experts everywhere"), ("fast", "a dense layer first")]
)
@torch.inference_mode()
def test_launches_read_and_commit_what_the_reference_does(device, dtype, mode, layers, tmp_path):
    pair = twins(tmp_path, device, dtype, mode, layers)
    plain, fused = pair.states(64)
    want = pair.reference.read_prompt(torch.tensor(PROMPT), plain)
    found = pair.fused.read_prompt(torch.tensor(PROMPT, device=device), fused)
    assert distance(found.taps.cpu(), want.taps) < FUSED[dtype]
    for rows, accepted in ((9, 3), (2, 2)):
        want, found = read(pair.reference, BLOCK, rows, plain), read(pair.fused, BLOCK, rows, fused)
        assert distance(found.taps[:rows].cpu(), want.taps[:rows]) < FUSED[dtype]
        if dtype == torch.float32:
            assert torch.equal(found.tokens[:rows], want.tokens[:rows])
        commit(plain, accepted)
        commit(fused, accepted)
        ours, theirs = fused.committed(), plain.committed()
        assert int(ours.pop("length")) == int(theirs.pop("length"))
        for name, tensor in theirs.items():
            assert distance(ours[name].cpu(), tensor) < FUSED[dtype], name


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@torch.inference_mode()
def test_a_row_of_a_block_equals_plain_decoding_bit_for_bit(device, dtype, tmp_path):
    pair = twins(tmp_path, device, dtype, "exact", "experts everywhere")
    target, rows = pair.fused, 16 if device == "cuda" else 2
    block = pair.states(64)[1]
    target.read_prompt(torch.tensor(PROMPT, device=device), block)
    step = deepcopy(block)
    found = read(target, BLOCK, rows, block)
    tokens, taps = found.tokens.clone(), found.taps.clone()
    for row in range(rows):
        alone = read(target, BLOCK[row : row + 1], 1, step)
        assert torch.equal(alone.tokens[0], tokens[row])
        assert torch.equal(alone.taps[0], taps[row])
        commit(step, 1)
    commit(block, rows)
    for name, tensor in block.committed().items():
        assert torch.equal(step.committed()[name], tensor), name


@pytest.mark.parametrize("layers", LAYERS)
@torch.inference_mode()
def test_distinct_experts_are_counted_layer_by_layer(layers, tmp_path):
    """Against the ids of a trace's target; the shared expert is none of them."""
    pair = twins(tmp_path, "cpu", torch.float32, "exact", layers)
    target = HeardFusedTarget.listening(pair.fused)
    for rows in (1, 3, 5):
        target.heard.clear()
        read(target, BLOCK, rows, pair.states(64)[1])
        distinct = [len(ids[:rows].unique()) for ids in target.heard]
        assert target.fetched.tolist() == distinct


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@torch.inference_mode()
def test_a_row_dropped_after_the_router_leaves_no_trace(device, dtype, tmp_path):
    pair = twins(tmp_path, device, dtype, "exact", "experts everywhere")
    target, one = pair.fused, pair.states(64)[1]
    counts = [torch.tensor(n, dtype=torch.int32, device=device) for n in (2, 3)]
    block = torch.tensor(BLOCK, device=device)
    target.read_prompt(torch.tensor(PROMPT, device=device), one)
    other = deepcopy(one)
    kept = target.read_on(target.read_to_router(block, counts[0], one), counts[0], one)
    tokens, taps = kept.tokens[:2].clone(), kept.taps[:2].clone()
    fetched = target.buffers.counts.clone()
    dropped = target.read_on(target.read_to_router(block, counts[1], other), counts[0], other)
    assert torch.equal(dropped.tokens[:2], tokens)
    assert torch.equal(dropped.taps[:2], taps)
    assert torch.equal(target.buffers.counts, fetched)
    for state in (one, other):
        commit(state, 2)
    for name, tensor in one.committed().items():
        assert torch.equal(other.committed()[name], tensor), name


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers", LAYERS)
@torch.inference_mode()
def test_a_captured_pass_reads_its_counts_from_the_device(device, dtype, mode, layers, tmp_path):
    pair = twins(tmp_path, device, dtype, mode, layers)
    state = pair.states(64)[1]
    target, block = pair.fused, torch.tensor(BLOCK, device=device)
    target.read_prompt(torch.tensor(PROMPT, device=device), state)
    rows = torch.ones((), dtype=torch.int32, device=device)

    def run():
        return target.read_on(target.read_to_router(block, rows, state), rows, state)

    run()
    captured = []
    graph = recorded(lambda: captured.append(run()))
    for count in (16, 1, 7, 12):
        rows.fill_(count)
        graph.replay()
        found = captured[0].taps[:count].clone(), captured[0].tokens[:count].clone()
        again = run()
        assert torch.equal(again.taps[:count], found[0])
        assert torch.equal(again.tokens[:count], found[1])


@pytest.mark.parametrize(
    "wrong",
    [
        {"linear_value_head_dim": 16},
        {"linear_key_head_dim": 24},
        {"shared_expert_intermediate_size": 24},
    ],
)
def test_widths_that_the_kernels_do_not_take_are_refused_when_a_target_is_made(wrong, tmp_path):
    directory = write_target(tmp_path, **TARGET | LAYERS["experts everywhere"] | wrong)
    with pytest.raises(OptionError, match=f"{next(iter(wrong))} .*--device cpu"):
        FusedTarget.of(
            load(directory, taps=()), mode="fast", dtype=torch.float32, device=torch.device("cpu")
        )
