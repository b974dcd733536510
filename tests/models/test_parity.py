# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The target against Transformers, which wrote the formulas down first, in float32."""

import random

import pytest
import torch

from hybridspec.models import embedded
from tests.decoding import commit, load_tapped, logits_of, prefilled, read_block, read_text
from tests.tiny import VOCAB, write_target
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


def drawn(seed):
    """A random configuration, of Qwen3-Next with layers that have no router."""
    rng = random.Random(seed)
    family, layers = ("qwen3_5_moe", "qwen3_next")[seed % 2], rng.randint(2, 6)
    kv_heads, key_heads, experts = rng.randint(1, 3), rng.randint(1, 3), rng.randint(3, 12)
    changes = {
        "hidden_size": rng.choice([24, 32, 56]),
        "num_hidden_layers": layers,
        "layer_types": rng.choices(["linear_attention", "full_attention"], [2, 1], k=layers),
        "num_attention_heads": kv_heads * rng.randint(1, 3),
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([8, 16, 24]),
        "linear_conv_kernel_dim": rng.randint(2, 4),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * rng.randint(1, 3),
        "linear_key_head_dim": rng.choice([8, 16, 20]),
        "linear_value_head_dim": rng.choice([8, 24, 36]),
        "num_experts": experts,
        "num_experts_per_tok": rng.randint(1, experts),
        "moe_intermediate_size": rng.choice([8, 12, 20]),
        "shared_expert_intermediate_size": rng.choice([8, 20]),
        "tie_word_embeddings": rng.random() < 0.3,
    }
    if family == "qwen3_next":
        step = rng.randint(1, 2)
        routed = [i for i in range(layers) if (i + 1) % step == 0]
        changes |= {
            "decoder_sparse_step": step,
            "mlp_only_layers": rng.sample(routed, rng.randint(0, len(routed) - 1)),
            "norm_topk_prob": rng.random() < 0.5,
        }
    return family, changes


CHECKPOINTS = {
    "tiny": ("qwen3_5_moe", {}),
    "other": ("qwen3_5_moe", OTHER),
    "tiny next": ("qwen3_next", {}),
    "other next": ("qwen3_next", OTHER),
    "first layers without a router": ("qwen3_next", {"mlp_only_layers": [0, 1]}),
    "shares as softmax gives them": ("qwen3_next", {"norm_topk_prob": False}),
} | {f"drawn {seed}": drawn(seed) for seed in range(12)}
TOKENS = torch.randint(VOCAB, (150,), generator=torch.Generator().manual_seed(3))
"""past two chunks of Transformers' block form and past a page of ours"""


@pytest.fixture(scope="module", params=[*CHECKPOINTS, "embedded"])
def checkpoint(request, tmp_path_factory):
    if request.param == "embedded":
        return embedded.TARGET
    family, changes = CHECKPOINTS[request.param]
    return write_target(tmp_path_factory.mktemp("parity"), family=family, **changes)


def logits_of_theirs(directory, tokens=TOKENS, dtype=torch.float32):
    return outputs_of_theirs(directory, tokens, dtype)[0]


def outputs_of_theirs(directory, tokens=TOKENS, dtype=torch.float32):
    """Logits, and the output of every layer."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    outputs = []
    for layer in model.model.layers:
        layer.register_forward_hook(
            lambda _module, _args, out: outputs.append(out if torch.is_tensor(out) else out[0])
        )
    with torch.no_grad():
        logits = model(tokens[None], use_cache=False).logits[0]
    return logits, [x.view(len(tokens), -1) for x in outputs]


@pytest.fixture(scope="module")
def theirs(checkpoint):
    return outputs_of_theirs(checkpoint)


def bound_of(x):
    return LOGITS * max(1.0, float(x.abs().max()))


def assert_close(found, want):
    """Promise: within the bound, and the same arg-max wherever it is not a near-tie."""
    assert (found - want).abs().max() < bound_of(want)
    best = want.topk(2).values
    clear = best[:, 0] - best[:, 1] > 2 * bound_of(want)
    assert clear.sum() > 0.9 * len(want)
    assert torch.equal(found.argmax(-1)[clear], want.argmax(-1)[clear])


def test_logits_equal_those_of_transformers(checkpoint, theirs):
    target = load_tapped(checkpoint)
    reading = read_text(target, TOKENS)
    logits = logits_of(target, reading)
    assert_close(logits, theirs[0])
    assert torch.equal(reading.tokens, logits[-1:].argmax(-1))


def test_taps_are_the_outputs_of_their_layers(checkpoint, theirs):
    taps, outputs = read_text(load_tapped(checkpoint), TOKENS).taps, theirs[1]
    for number, (found, output) in enumerate(
        zip(taps.chunk(len(outputs), 1), outputs, strict=True)
    ):
        assert (found - output).abs().max() < bound_of(output), number


@pytest.fixture(scope="module", params=["tiny", "tiny next", "first layers without a router"])
def split_checkpoint(request, tmp_path_factory):
    family, changes = CHECKPOINTS[request.param]
    directory = write_target(tmp_path_factory.mktemp("split"), family=family, **changes)
    return directory, logits_of_theirs(directory)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize(
    ("prompt", "blocks"),
    [(1, [1] * 4), (2, [16]), (12, [8]), (12, [1] * 8), (5, [7, 8]), (63, [1, 1, 3]), (64, [16]),
     (65, [2, 15, 1]), (120, [5, 16, 9]), (130, [1])],
)  # fmt: skip
def test_any_split_into_prompt_and_blocks_reads_what_transformers_reads(
    split_checkpoint, prompt, blocks, mode
):
    directory, want = split_checkpoint
    target, text = load_tapped(directory, mode=mode), TOKENS.tolist()
    state, place = prefilled(target, text[:prompt]), prompt
    for rows in blocks:
        block = (text[place : place + rows] + [0] * 16)[:16]
        found = logits_of(target, read_block(target, block, rows, state))[:rows]
        assert (found - want[place : place + rows]).abs().max() < bound_of(want)
        commit(state, rows)
        place += rows


def test_one_token_after_a_prompt_of_any_length_reads_what_transformers_reads(split_checkpoint):
    """Lengths across the chunk of 64 and the page of 128."""
    directory, want = split_checkpoint
    target, text = load_tapped(directory), TOKENS.tolist()
    walked = prefilled(target, text[:1], room=200)
    for length in range(2, 131):
        fresh = prefilled(target, text[: length - 1])
        for state in (walked, fresh):
            found = logits_of(target, read_block(target, text[length - 1 : length], 1, state))[:1]
            assert (found - want[length - 1]).abs().max() < bound_of(want), length
        commit(walked, 1)
