# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The target against Transformers, which wrote the formulas down first."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridspec.models import embedded
from hybridspec.models.state import TargetState
from tests.decoding import CPU, load, logits_of
from tests.tiny import TARGET, VOCAB, target_tensors, write_json, write_target
from tests.tolerances import LOGITS

OTHER = {
    "hidden_size": 48,
    "num_hidden_layers": 8,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "linear_conv_kernel_dim": 3,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 8,
    "num_experts": 12,
    "num_experts_per_tok": 4,
    "tie_word_embeddings": True,
}
"""unlike TARGET in every ratio: as many key heads as value heads, keys wider than values"""


@pytest.fixture(scope="module", params=["tiny", "other", "embedded"])
def checkpoint(request, tmp_path_factory):
    if request.param == "embedded":
        return embedded.TARGET
    if request.param == "tiny":
        return write_target(tmp_path_factory.mktemp("parity") / "tiny")
    directory = write_target(tmp_path_factory.mktemp("parity") / "other", **OTHER)
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]  # tied
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture(scope="module")
def theirs(checkpoint):
    """Logits and layer outputs of Transformers for TOKENS, in float32."""
    from transformers import Qwen3_5MoeForCausalLM

    model = Qwen3_5MoeForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    outputs = []
    hooks = [
        layer.register_forward_hook(
            lambda _module, _args, out: outputs.append(out if torch.is_tensor(out) else out[0])
        )
        for layer in model.model.layers
    ]
    with torch.no_grad():
        logits = model(TOKENS[None]).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, [x.view(len(TOKENS), -1) for x in outputs]


TOKENS = torch.randint(VOCAB, (150,), generator=torch.Generator().manual_seed(3))
"""past two chunks of Transformers' block form and past a page of ours"""


def read(target, tokens=TOKENS, split=64):
    state = TargetState.empty(target.config, len(tokens), CPU)
    readings = [target.read_prompt(piece, state) for piece in tokens.split(split)]
    taps = torch.cat([reading.taps for reading in readings])
    logits = torch.cat([logits_of(target, reading) for reading in readings])
    assert torch.equal(readings[-1].tokens, logits[-1:].argmax(-1))
    return taps, logits


def everything_tapped(checkpoint):
    return load(checkpoint, taps=tuple(range(len(load(checkpoint, taps=()).layers))))


def test_logits_equal_those_of_transformers(checkpoint, theirs):
    _, found = read(everything_tapped(checkpoint))
    logits, _ = theirs
    bound = LOGITS * max(1.0, float(logits.abs().max()))
    assert (found - logits).abs().max() < bound
    best = logits.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * bound
    assert clear.sum() > 0.9 * len(TOKENS)
    assert torch.equal(found.argmax(-1)[clear], logits.argmax(-1)[clear])


def test_taps_are_the_outputs_of_their_layers(checkpoint, theirs):
    taps, _ = read(everything_tapped(checkpoint))
    _, outputs = theirs
    for number, (found, output) in enumerate(
        zip(taps.chunk(len(outputs), 1), outputs, strict=True)
    ):
        assert (found - output).abs().max() < LOGITS * max(1.0, float(output.abs().max())), number


def write_official(directory, tensors, config=TARGET):
    """As the whole model ships: nested configuration, long prefix, parts that are not run."""
    directory.mkdir()
    write_json(directory / "config.json", {"model_type": "qwen3_5_moe", "text_config": config})
    named = {name.replace("model.", "model.language_model.", 1): x for name, x in tensors.items()}
    named |= {
        "mtp.fc.weight": torch.ones(3, 5),
        "mtp.layers.0.mlp.gate.weight": torch.ones(2),
        "model.visual.blocks.0.attn.qkv.weight": torch.ones(7, 7),
    }
    save_file(named, directory / "model.safetensors")
    return directory


def test_the_official_layout_loads_to_the_same_logits(tiny_target, tmp_path):
    tensors = load_file(tiny_target / "model.safetensors")
    nested = load(write_official(tmp_path / "official", tensors))
    assert torch.equal(read(nested)[1], read(load(tiny_target))[1])


def test_half_precision_files_compute_in_float32_from_their_values(tmp_path):
    """A_log and norms in F32 beside bf16 weights, as official checkpoints have them."""
    tensors = target_tensors(TARGET, 0)
    keeps = ("A_log", "linear_attn.norm.weight")
    stored = {n: x if n.endswith(keeps) else x.bfloat16() for n, x in tensors.items()}
    mixed = load(write_official(tmp_path / "mixed", stored))
    rounded = {name: x.float() for name, x in stored.items()}
    wide = load(write_official(tmp_path / "wide", rounded))
    assert all(x.dtype == torch.float32 for x in (mixed.embedding, mixed.layers[0].mlp.router))
    assert torch.equal(
        mixed.layers[0].mixer.weights.decay_rate,
        tensors["model.layers.0.linear_attn.A_log"].exp(),
    )
    assert torch.equal(read(mixed)[1], read(wide)[1])
    full = load(write_official(tmp_path / "full", tensors))
    assert not torch.equal(read(mixed)[1], read(full)[1])
