# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Drafters of the speculators library: the same network, with taps counted otherwise."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridspec import LLM, SamplingParams
from hybridspec.core.errors import CheckpointError
from hybridspec.models.draft_config import DraftConfig
from tests.decoding import load_draft
from tests.draft_judge import Judge, check_block
from tests.models.test_dflash import TOKENS, proposed, read
from tests.tiny import DRAFTER, MASK_ID, VOCAB, write_drafter, write_json

SPECULATORS = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"": "config.DFlashSpeculatorConfig"},
    "aux_hidden_state_layer_ids": [1, 3, 4],
    "block_size": 8,
    "draft_vocab_size": VOCAB,
    "dtype": "float32",
    "mask_token_id": MASK_ID,
    "sample_from_anchor": False,
    "sliding_window_non_causal": False,
    "speculators_config": {
        "algorithm": "dflash",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        "verifier": {"architectures": [], "name_or_path": "a/target"},
    },
    "speculators_model_type": "dflash",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 40,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 8,
        "use_sliding_window": True,
        "vocab_size": VOCAB,
    },
}
"""what speculators 0.9.0 saves for the sizes of DRAFTER; an id k is what goes into layer k"""

LAYERS = SPECULATORS["transformer_layer_config"]
FULL, SLIDING = "full_attention", "sliding_attention"
ZLAB = DRAFTER | {
    "layer_types": [SLIDING, FULL],
    "use_sliding_window": True,
    "sliding_window": 8,
    "block_size": 8,
    "num_target_layers": None,
}
"""SPECULATORS as z-lab would write it; it taps what goes into layers 1, 3 and 4"""


def config(tmp_path, **changes):
    write_json(tmp_path / "config.json", SPECULATORS | changes)
    return DraftConfig.load(tmp_path)


def test_a_tap_is_what_goes_into_the_layer_of_that_id(tmp_path):
    """So an id k is the output of layer k - 1, and z-lab's id for it is k - 1."""
    found = config(tmp_path)
    assert found.target_layer_ids == (0, 2, 3)
    write_json(tmp_path / "config.json", ZLAB)
    assert found == DraftConfig.load(tmp_path)
    # the published pair: z-lab's 1, 10, 19, 28, 37 are speculators' 2, 11, 20, 29, 38
    taps = config(tmp_path, aux_hidden_state_layer_ids=[2, 11, 20, 29, 38]).target_layer_ids
    assert taps == (1, 10, 19, 28, 37)


def test_the_same_weights_in_both_formats_draft_the_same(tiny_target, target, tmp_path):
    ours = write_drafter(tmp_path / "speculators", shape=SPECULATORS)
    theirs = write_drafter(tmp_path / "zlab", shape=ZLAB)
    taps, _ = read(target, TOKENS[:40])
    blocks = [proposed(load_draft(path, target), taps, 65) for path in (ours, theirs)]
    assert torch.equal(blocks[0].tokens, blocks[1].tokens)
    assert torch.equal(blocks[0].log_odds, blocks[1].log_odds)
    judge = Judge(ours, load_draft(ours, target))
    check_block(blocks[0], judge.logits(taps, 65), MASK_ID)
    few = SamplingParams(max_new_tokens=20)
    texts = [
        LLM(tiny_target, draft_model=path, policy="fixed").generate("x" * 30, few)
        for path in (ours, theirs)
    ]
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[0].stats.rounds == texts[1].stats.rounds


@pytest.mark.parametrize(("non_causal", "is_causal"), [(False, None), (True, False)])
def test_sliding_layers_are_causal_as_the_flag_says(target, tmp_path, non_causal, is_causal):
    directory = write_drafter(tmp_path, shape=SPECULATORS, sliding_window_non_causal=non_causal)
    drafter = load_draft(directory, target)
    assert drafter.config.is_causal is is_causal
    assert drafter.config.causal(SLIDING) is not non_causal
    assert not drafter.config.causal(FULL)
    taps, _ = read(target, TOKENS[:40])
    check_block(proposed(drafter, taps, 65), Judge(directory, drafter).logits(taps, 65), MASK_ID)


def test_layer_kinds_may_stand_beside_the_layers(tmp_path):
    """Where older versions of the library wrote them."""
    names = ("layer_types", "sliding_window", "use_sliding_window")
    bare = {key: value for key, value in LAYERS.items() if key not in names}
    beside = {name: LAYERS[name] for name in names}
    nulls = bare | {"sliding_window": None}
    want = config(tmp_path)
    assert config(tmp_path, transformer_layer_config=bare, **beside) == want
    assert config(tmp_path, transformer_layer_config=nulls, **beside) == want


def test_the_class_of_a_config_without_weights_is_taken_too(tmp_path):
    assert config(tmp_path, architectures=["DFlashSpeculator"]) == config(tmp_path)


def test_a_rotary_embedding_from_a_target_with_pictures_turns_text_alike(tmp_path):
    rope = LAYERS["rope_parameters"] | {"mrope_section": [4, 2, 2], "partial_rotary_factor": 1.0}
    layers = LAYERS | {"rope_parameters": rope}
    assert config(tmp_path, transformer_layer_config=layers) == config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"speculators_model_type": "dspark"}, ["speculators_model_type", "dspark", "dflash"]),
        ({"speculators_model_type": "dflash2"}, ["speculators_model_type", "dflash2"]),
        ({"speculators_model_type": "eagle3"}, ["speculators_model_type", "eagle3"]),
        ({"architectures": ["DSparkDraftModel"]}, ["DSparkDraftModel"]),
        ({"draft_vocab_size": 64}, ["draft_vocab_size", "64", "288", "d2t"]),
        ({"draft_vocab_size": None}, ["draft_vocab_size", "missing"]),
        ({"sample_from_anchor": True}, ["sample_from_anchor"]),
        ({"target_hidden_size": 64}, ["target_hidden_size", "64", "32"]),
        ({"aux_hidden_state_layer_ids": [0, 2]}, ["aux_hidden_state_layer_ids", "[0, 2]"]),
        ({"aux_hidden_state_layer_ids": []}, ["aux_hidden_state_layer_ids", "[]"]),
        ({"aux_hidden_state_layer_ids": None}, ["aux_hidden_state_layer_ids", "missing"]),
        ({"aux_hidden_state_layer_ids": [True]}, ["aux_hidden_state_layer_ids", "True"]),
        ({"mask_token_id": None}, ["mask_token_id", "missing"]),
        ({"block_size": None}, ["block_size", "missing"]),
        ({"block_size": 17}, ["block_size 17", "16"]),
        ({"markov_rank": 256}, ["markov_rank", "256"]),
        ({"enable_confidence_head": True}, ["enable_confidence_head"]),
        ({"selector_top_k": 16}, ["selector_top_k", "16"]),
        ({"is_causal": False}, ["is_causal", "False"]),
        ({"dflash_config": {"target_layer_ids": [1]}}, ["dflash_config", "[1]"]),
        ({"layer_types": [FULL, FULL]}, ["layer_types", "root", "transformer_layer_config"]),
        ({"sliding_window": 9}, ["sliding_window", "9", "8"]),
        ({"sliding_window_non_causal": None}, ["sliding_window_non_causal", "missing"]),
        ({"sliding_window_non_causal": "no"}, ["sliding_window_non_causal", "no"]),
        ({"transformer_layer_config": None}, ["transformer_layer_config", "missing"]),
        ({"transformer_layer_config": LAYERS | {"is_causal": True}}, ["is_causal", "True"]),
        ({"transformer_layer_config": LAYERS | {"hidden_act": "relu"}}, ["hidden_act", "relu"]),
        ({"transformer_layer_config": LAYERS | {"num_hidden_layers": 3}}, ["layer_types", "3"]),
        (
            {
                "sliding_window_non_causal": None,
                "transformer_layer_config": LAYERS
                | {"layer_types": 5, "use_sliding_window": False},
            },
            ["layer_types", "5"],
        ),
    ],
)
def test_another_network_is_named(tmp_path, changes, named):
    with pytest.raises(CheckpointError) as caught:
        config(tmp_path, **changes)
    for words in (*named, str(tmp_path / "config.json")):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"aux_hidden_state_layer_ids": [0] * 5000}, {"layer_types": [FULL] * 5000}],
)
def test_a_list_of_thousands_is_not_repeated(tmp_path, changes):
    with pytest.raises(CheckpointError) as caught:
        config(tmp_path, **changes)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def with_tensors(directory, more):
    path = directory / "model.safetensors"
    save_file(load_file(path) | {name: x.clone() for name, x in more.items()}, path)
    return directory


def test_copies_of_the_targets_embedding_and_head_are_taken(target, tmp_path):
    """Older versions of the library saved them, and what they trained against."""
    directory = write_drafter(tmp_path, shape=SPECULATORS)
    copies = {"embed_tokens.weight": target.embedding, "lm_head.weight": target.head}
    trained = {"verifier_lm_head.weight": target.head, "verifier_norm.weight": target.norm}
    drafter = load_draft(with_tensors(directory, copies | trained), target)
    assert drafter.head is target.head
    assert drafter.embedding is target.embedding


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_an_embedding_or_head_of_its_own_is_refused(target, tmp_path, name):
    directory = write_drafter(tmp_path, shape=SPECULATORS)
    with_tensors(directory, {name: torch.zeros(VOCAB, 32)})
    with pytest.raises(CheckpointError, match=rf"{name}.*not the target's"):
        load_draft(directory, target)


@pytest.mark.parametrize("name", ["d2t", "t2d", "markov_head.w1.weight", "confidence_head.weight"])
def test_a_tensor_of_another_network_is_named(target, tmp_path, name):
    directory = with_tensors(write_drafter(tmp_path, shape=SPECULATORS), {name: torch.zeros(4)})
    with pytest.raises(CheckpointError, match=rf"unknown tensor '{name}'"):
        load_draft(directory, target)


def test_taps_beyond_the_target_are_refused(tiny_target, tmp_path):
    ids = {"aux_hidden_state_layer_ids": [1, 5]}
    directory = write_drafter(tmp_path, shape=SPECULATORS, **ids)
    with pytest.raises(CheckpointError, match=r"layer 4, .* layers 0 to 3"):
        LLM(tiny_target, draft_model=directory)
