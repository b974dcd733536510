# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Loading to a CUDA device: no second copy there, the same numbers, and estimates that hold."""

from dataclasses import fields, is_dataclass

import pytest
import torch

from hybridspec import LLM, SamplingParams
from hybridspec.core.errors import OptionError
from hybridspec.engine.loading import Checkpoint
from hybridspec.engine.memory import free_bytes, held_bytes
from hybridspec.models.embedded import heldout_prompts
from hybridspec.models.fused import FusedTarget
from hybridspec.models.reading import Staged
from tests.decoding import load
from tests.tiny import write_target
from tests.tiny_target import EXPERTS, Layout

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
SIZES = {
    "vocab_size": 512,
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "layer_types": ["linear_attention"] * 5 + ["full_attention"],
    "num_experts": 40,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "head_dim": 64,
}
"""a layer takes 62 MiB"""
STAGE = 1 << 22
SMALL = 1 << 16
"""bytes of a device's scalars and tables that come and go beside a layer"""


def asked(of="current"):
    """Bytes that tensors asked for; what the allocator gave is up to 1 MiB more for each."""
    return torch.cuda.memory_stats()[f"requested_bytes.all.{of}"]


@pytest.fixture(scope="module", params=EXPERTS)
def found(request, tmp_path_factory):
    layout = Layout(experts=request.param, dtype=torch.bfloat16, shards=3)
    directory = write_target(tmp_path_factory.mktemp("target"), layout=layout, **SIZES)
    return Checkpoint.found(directory, None, needs_drafter=False)


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_of(part)
    elif is_dataclass(value):
        for part in fields(value):
            if part.name != "buffers":
                yield from tensors_of(getattr(value, part.name))


def test_no_second_copy_is_ever_on_the_card(found):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = asked()
    target, _ = found.fused("exact", Staged(CUDA, torch.bfloat16, stage_bytes=STAGE))
    peak = asked("peak") - before
    weights, layer = held_bytes(target), max(map(held_bytes, target.layers))
    assert layer > 8 * STAGE
    assert weights > 5 * layer
    assert peak <= weights + layer + SMALL


def test_an_estimate_is_what_tensors_ask_for(found):
    before = asked()
    target, _ = found.fused("exact", Staged(CUDA, torch.bfloat16, stage_bytes=STAGE))
    weights = asked() - before
    state = target.empty_state(5000)
    request = asked() - before - weights
    memory = found.memory("exact", CUDA)
    for taken, parts in ((weights, memory.weights()), (request, memory.request(5000))):
        assert 0 <= taken - sum(parts.values()) <= SMALL
    assert int(state.length) == 0


def test_what_is_loaded_is_what_a_whole_model_would_be_packed_into(found):
    mine, _ = found.fused("exact", Staged(CUDA, torch.bfloat16, stage_bytes=STAGE))
    plain = load(found.directory, taps=())
    theirs = FusedTarget.of(plain, mode="exact", dtype=torch.bfloat16, device=CUDA)
    for ours, other in zip(tensors_of(mine), tensors_of(theirs), strict=True):
        # decay rates are exponentials, which a device rounds in its own way
        torch.testing.assert_close(ours, other, rtol=1e-6, atol=0)
        assert ours.dtype == torch.float32 or torch.equal(ours, other)


def test_the_embedded_pair_that_is_loaded_decodes():
    llm = LLM(device="cuda", max_context=600)
    plain = llm.using(policy="plain")
    few, prompt = SamplingParams(max_new_tokens=24), heldout_prompts("test")[0]
    assert llm.generate(prompt, few).token_ids == plain.generate(prompt, few).token_ids


def test_free_memory_counts_what_the_allocator_keeps():
    before = free_bytes(CUDA)
    kept = torch.empty(1 << 30, dtype=torch.uint8, device=CUDA)
    assert before is not None
    assert before - free_bytes(CUDA) >= 1 << 30
    del kept
    assert abs(before - free_bytes(CUDA)) < 1 << 26


def test_a_card_that_is_full_refuses_before_it_reads(found, monkeypatch):
    monkeypatch.setattr(Staged, "__call__", None)
    monkeypatch.setattr("hybridspec.engine.loading.free_bytes", lambda device: 1 << 30)
    with pytest.raises(OptionError, match=r"of memory.*1\.00 GiB are free on NVIDIA"):
        LLM(found.directory, policy="plain", device="cuda")
