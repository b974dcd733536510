# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import re

import pytest

from hybridspec.core.errors import CheckpointError
from hybridspec.models.config_fields import token_ids
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.target_config import TargetConfig
from tests.tiny import DRAFTER, NEXT, TARGET, write_json

OFFICIAL_TEXT = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attn_output_gate": True,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "mamba_ssm_dtype": "float32",
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
    "mtp_num_hidden_layers": 1,
    "eos_token_id": 248044,
    "use_cache": True,
    "dtype": "bfloat16",
}
OFFICIAL = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "image_token_id": 248056,
    "video_token_id": 248057,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "text_config": OFFICIAL_TEXT,
}
"""Qwen3.6-35B-A3B"""
CODER_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_theta": 5000000,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "norm_topk_prob": True,
    "eos_token_id": 151645,
    "bos_token_id": 151643,
    "use_cache": True,
}
"""Qwen3-Coder-Next"""


def target(tmp_path, values):
    write_json(tmp_path / "config.json", values)
    return TargetConfig.load(tmp_path)


def drafter(tmp_path, values):
    write_json(tmp_path / "config.json", values)
    return DraftConfig.load(tmp_path)


def without(values, name):
    return {key: value for key, value in values.items() if key != name}


@pytest.mark.parametrize("values", [OFFICIAL, OFFICIAL_TEXT])
def test_the_35b_shape_parses_nested_and_flat(tmp_path, values):
    config = target(tmp_path, values)
    assert config.conv_width == 2 * 16 * 128 + 32 * 128
    assert (config.num_gdn_layers, config.num_attention_layers) == (30, 10)
    assert config.layer_types[3] == "full_attention"
    assert (config.rotary_dims, config.rope_theta) == (64, 1e7)
    assert (config.num_experts, config.num_experts_per_tok) == (256, 8)
    assert config.eos_token_ids == (248044,)
    assert not config.tie_word_embeddings


def test_a_quantization_config_beside_the_text_model_is_named(tmp_path):
    """Where official files have it; on bf16 weights nothing else would refuse it."""
    with pytest.raises(CheckpointError, match="quantization_config"):
        target(tmp_path, OFFICIAL | {"quantization_config": {"quant_method": "bitsandbytes"}})


def test_qwen3_coder_next_parses(tmp_path):
    config = target(tmp_path, CODER_NEXT)
    assert config.family == "qwen3_next"
    assert config.conv_width == 2 * 16 * 128 + 32 * 128
    assert (config.num_gdn_layers, config.num_attention_layers) == (36, 12)
    assert config.layer_types == (("linear_attention",) * 3 + ("full_attention",)) * 12
    assert (config.rotary_dims, config.rope_theta) == (64, 5e6)
    assert (config.num_experts, config.num_experts_per_tok) == (512, 10)
    assert all(config.routed_layers)
    assert config.intermediate_size == 0  # the file's 5120 is for layers that it has none of
    assert config.norm_topk_prob
    assert config.eos_token_ids == (151645,)


@pytest.mark.parametrize("official", [OFFICIAL_TEXT, CODER_NEXT])
def test_layer_types_follow_from_the_interval(tmp_path, official):
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    listed = official | {"layer_types": kinds * (official["num_hidden_layers"] // 4)}
    config = target(tmp_path, without(official, "layer_types"))
    assert config == target(tmp_path, listed)


ROPE = {"rope_theta": 5000000, "partial_rotary_factor": 0.25}


@pytest.mark.parametrize("official", [OFFICIAL_TEXT, CODER_NEXT])
@pytest.mark.parametrize(
    "placed",
    [
        ROPE,
        ROPE | {"rope_scaling": None, "rope_parameters": None},
        {"rope_theta": 5000000},
        {"rope_parameters": ROPE | {"rope_type": "default"}},
        {"rope_parameters": ROPE},
        {"rope_scaling": ROPE | {"type": "default"}},
        {"rope_parameters": {"rope_theta": 5000000}, "partial_rotary_factor": 0.25},
        {"rope_parameters": {"partial_rotary_factor": 0.25}, "rope_theta": 5000000},
        {"rope_parameters": ROPE, "rope_theta": 7, "partial_rotary_factor": 0.5},
        {"rope_scaling": ROPE, "rope_parameters": {"rope_theta": 7}},
    ],
)
def test_rotary_fields_may_stand_at_the_root_or_inside_as_in_transformers(
    tmp_path, official, placed
):
    from transformers import AutoConfig

    bare = {n: x for n, x in official.items() if n not in (*ROPE, "rope_parameters")} | placed
    config = target(tmp_path, bare)
    assert (config.rope_theta, config.rotary_dims) == (5e6, 64)
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert (theirs["rope_theta"], theirs["partial_rotary_factor"]) == (5000000, 0.25)


@pytest.mark.parametrize(
    ("changes", "routed"),
    [
        ({}, "1111"),
        ({"mlp_only_layers": None, "decoder_sparse_step": None}, "1111"),
        ({"mlp_only_layers": [0]}, "0111"),
        ({"mlp_only_layers": [0, 1, 2]}, "0001"),
        ({"decoder_sparse_step": 2}, "0101"),
        ({"decoder_sparse_step": 3}, "0010"),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [0, 3]}, "0100"),
    ],
)
def test_layers_have_a_router_where_transformers_gives_them_one(tmp_path, changes, routed):
    config = target(tmp_path, NEXT | changes)
    assert config.routed_layers == tuple(mark == "1" for mark in routed)
    assert config.intermediate_size == (0 if all(config.routed_layers) else 28)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mlp_only_layers": [0, 1, 2, 3]}, ["mlp_only_layers [0, 1, 2, 3]", "dense"]),
        ({"decoder_sparse_step": 5}, ["decoder_sparse_step 5", "router", "dense"]),
        ({"decoder_sparse_step": 4, "mlp_only_layers": [3]}, ["mlp_only_layers [3]", "dense"]),
        ({"decoder_sparse_step": 0}, ["decoder_sparse_step", "from 1"]),
        ({"decoder_sparse_step": True}, ["decoder_sparse_step", "int"]),
        ({"mlp_only_layers": 3}, ["mlp_only_layers", "list"]),
        ({"mlp_only_layers": [4]}, ["mlp_only_layers", "0 to 3", "4"]),
        ({"mlp_only_layers": [-1]}, ["mlp_only_layers", "-1"]),
        ({"mlp_only_layers": ["0"]}, ["mlp_only_layers", "'0'"]),
        ({"mlp_only_layers": [1], "intermediate_size": None}, ["intermediate_size", "missing"]),
        ({"num_experts": 0}, ["num_experts"]),
        ({"norm_topk_prob": 1}, ["norm_topk_prob", "bool"]),
        ({"attn_output_gate": False}, ["attn_output_gate"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_scaling", "linear"]),
        ({"rope_scaling": "yarn"}, ["rope_scaling", "dict"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["rope_parameters", "yarn"]),
        ({"rope_theta": None}, ["rope_theta"]),
        ({"full_attention_interval": 0}, ["full_attention_interval"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config"]),
    ],
)
def test_an_unsupported_field_of_qwen3_next_is_named(tmp_path, changes, named):
    with pytest.raises(CheckpointError) as caught:
        target(tmp_path, NEXT | changes)
    for words in (*named, str(tmp_path / "config.json")):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["rope_theta", "full_attention_interval", "num_experts", "linear_num_value_heads", "head_dim"],
)
def test_a_missing_field_of_qwen3_next_is_named(tmp_path, name):
    with pytest.raises(CheckpointError, match=name):
        target(tmp_path, without(NEXT, name))


@pytest.mark.parametrize(
    "name",
    sorted(
        TARGET.keys()
        - {"architectures", "hidden_act", "attention_bias", "tie_word_embeddings", "dtype"}
        - {"rms_norm_eps", "eos_token_id", "layer_types"}
    ),
)
def test_a_missing_target_field_is_named(tmp_path, name):
    with pytest.raises(CheckpointError, match=name):
        target(tmp_path, without(TARGET, name))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"attn_output_gate": False}, ["attn_output_gate"]),
        ({"rope_parameters": TARGET["rope_parameters"] | {"rope_type": "yarn"}}, ["yarn"]),
        ({"rope_parameters": TARGET["rope_parameters"] | {"partial_rotary_factor": 2.0}}, ["32"]),
        ({"rope_parameters": {"rope_type": "default"}}, ["rope_theta"]),
        ({"layer_types": ["linear_attention"] * 3}, ["layer_types", "4 layers"]),
        ({"layer_types": ["linear_attention"] * 3 + ["mamba"]}, ["mamba"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads 3"]),
        ({"linear_num_key_heads": 4}, ["linear_num_key_heads 4"]),
        ({"linear_conv_kernel_dim": 1}, ["linear_conv_kernel_dim"]),
        ({"num_experts_per_tok": 9}, ["num_experts_per_tok 9"]),
        ({"hidden_size": "32"}, ["hidden_size", "int"]),
        ({"hidden_size": 0}, ["hidden_size", "from 1 to"]),
        ({"vocab_size": True}, ["vocab_size"]),
        ({"eos_token_id": "stop"}, ["eos_token_id", "stop"]),
        ({"eos_token_id": [1, -2]}, ["eos_token_id", "-2"]),
        ({"model_type": "qwen3_5_text"}, ["qwen3_5_text", "qwen3_5_moe"]),
    ],
)
def test_an_unsupported_target_field_is_named(tmp_path, changes, named):
    with pytest.raises(CheckpointError) as caught:
        target(tmp_path, TARGET | changes)
    for words in (*named, str(tmp_path / "config.json")):
        assert words in str(caught.value)


DRAFT_OPTIONS = DRAFTER["dflash_config"]


def test_block_size_and_taps_are_found_at_either_level(tmp_path):
    nested = without(DRAFTER, "block_size") | {"dflash_config": DRAFT_OPTIONS | {"block_size": 16}}
    flat = without(DRAFTER, "dflash_config") | DRAFT_OPTIONS
    assert drafter(tmp_path, nested) == drafter(tmp_path, DRAFTER) == drafter(tmp_path, flat)


@pytest.mark.parametrize(
    ("layers", "depth", "taps"),
    [(5, 40, (1, 10, 19, 28, 37)), (5, 36, (1, 9, 17, 25, 33)), (5, 64, (1, 16, 31, 46, 61))],
)
def test_default_taps_are_those_of_the_published_drafters(tmp_path, layers, depth, taps):
    values = DRAFTER | {
        "num_hidden_layers": layers,
        "num_target_layers": depth,
        "dflash_config": without(DRAFT_OPTIONS, "target_layer_ids"),
    }
    assert drafter(tmp_path, values).target_layer_ids == taps
    assert drafter(tmp_path, values | {"num_hidden_layers": 1}).target_layer_ids == (depth // 2,)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_target_too_shallow_for_the_default_taps_is_named(tmp_path, depth):
    options = without(DRAFT_OPTIONS, "target_layer_ids")
    with pytest.raises(CheckpointError, match=f"'target_layer_ids' is missing, .* {depth} layers"):
        drafter(tmp_path, DRAFTER | {"num_target_layers": depth, "dflash_config": options})


@pytest.mark.parametrize("block", [2, 4, 8, 15, 16])
def test_blocks_up_to_sixteen_rows_are_taken(tmp_path, block):
    assert drafter(tmp_path, DRAFTER | {"block_size": block}).block_size == block


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"block_size": 1}, ["block_size 1", "2 to 16"]),
        ({"block_size": 17}, ["block_size 17", "2 to 16"]),
        ({"block_size": 31}, ["block_size 31", "2 to 16"]),
        ({"dflash_config": without(DRAFT_OPTIONS, "mask_token_id")}, ["mask_token_id"]),
        ({"dflash_config": DRAFT_OPTIONS | {"target_layer_ids": []}}, ["target_layer_ids"]),
        ({"dflash_config": DRAFT_OPTIONS | {"target_layer_ids": [-1]}}, ["target_layer_ids"]),
        ({"architectures": ["DSparkDraftModel"]}, ["DSparkDraftModel"]),
        ({"architectures": None}, ["architectures"]),
        ({"hidden_act": "gelu"}, ["hidden_act"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"output_multiplier": 0.5}, ["output_multiplier"]),
        ({"final_logit_softcapping": 30.0}, ["final_logit_softcapping"]),
        ({"input_embedding_scale": 2.0}, ["input_embedding_scale"]),
        ({"dflash_config": DRAFT_OPTIONS | {"output_multiplier": 0.5}}, ["output_multiplier"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads 3"]),
    ],
)
def test_an_unsupported_drafter_field_is_named(tmp_path, changes, named):
    with pytest.raises(CheckpointError) as caught:
        drafter(tmp_path, DRAFTER | changes)
    for words in (*named, str(tmp_path / "config.json")):
        assert words in str(caught.value)


def test_a_drafter_of_today_may_keep_its_theta_in_rope_parameters(tmp_path):
    values = without(DRAFTER, "rope_theta") | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}
    }
    assert drafter(tmp_path, values) == drafter(tmp_path, DRAFTER)


@pytest.mark.parametrize(
    ("content", "named"),
    [('{"a": 1,\n}', "line 2, column 1"), ("[1]", "must hold a JSON object"), ("", "line 1")],
)
def test_damaged_json_is_named_with_its_place(tmp_path, content, named):
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=re.escape(named)):
        TargetConfig.load(tmp_path)


def test_eos_may_be_one_id_a_list_or_nothing(tmp_path):
    assert token_ids(None, tmp_path) == ()
    assert token_ids(5, tmp_path) == (5,)
    assert token_ids([5, 6], tmp_path) == (5, 6)
