# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The two published drafters of one name, and what Transformers makes of the same fields."""

from copy import deepcopy

import pytest
import torch
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from hybridspec.core.errors import CheckpointError
from hybridspec.kernels.reference.rotary import Yarn, yarn_table
from hybridspec.models.draft_config import DraftConfig
from tests.decoding import CPU
from tests.tiny import DRAFTER, RETRAIN, V1, write_json

FULL, SLIDING = "full_attention", "sliding_attention"

SIZES = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "vocab_size": 248320,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_theta": 10000000,
    "num_target_layers": 40,
}
PUBLISHED_V1 = SIZES | {
    "num_hidden_layers": 8,
    "num_key_value_heads": 4,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
    "block_size": 16,
    "layer_types": [FULL] * 8,
    "use_sliding_window": False,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 10, 19, 28, 37]},
}
PUBLISHED_RETRAIN = SIZES | {
    "num_hidden_layers": 6,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "layer_types": [SLIDING] * 5 + [FULL],
    "use_sliding_window": True,
    "dflash_config": {
        "block_size": 16,
        "mask_token_id": 248077,
        "target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37],
    },
    "sliding_window": 4096,
}
YARN = PUBLISHED_V1["rope_scaling"]


def load(tmp_path, values):
    write_json(tmp_path / "config.json", values)
    return DraftConfig.load(tmp_path)


def without(values, *names):
    return {key: value for key, value in values.items() if key not in names}


def test_the_first_drafter_of_the_35b_parses(tmp_path):
    config = load(tmp_path, PUBLISHED_V1)
    assert (config.num_hidden_layers, config.num_key_value_heads) == (8, 4)
    assert (config.block_size, config.mask_token_id) == (16, 248070)
    assert config.target_layer_ids == (1, 10, 19, 28, 37)
    assert config.layer_types == (FULL,) * 8
    assert config.reach is None
    assert not config.causal(FULL)
    assert config.rope_theta == 1e7
    assert config.yarn == Yarn(
        factor=64.0, original_max_position_embeddings=4096, scale=1.4158883083359672
    )


def test_its_retrain_parses(tmp_path):
    config = load(tmp_path, PUBLISHED_RETRAIN)
    assert (config.num_hidden_layers, config.num_key_value_heads) == (6, 8)
    assert (config.block_size, config.mask_token_id) == (16, 248077)
    assert config.target_layer_ids == (1, 6, 11, 16, 22, 27, 32, 37)
    assert config.layer_types == (SLIDING,) * 5 + (FULL,)
    assert config.sliding_window == 4096
    assert (config.causal(SLIDING), config.causal(FULL)) == (True, False)
    assert config.yarn is None


@pytest.mark.parametrize("shape", [V1, RETRAIN, PUBLISHED_V1, PUBLISHED_RETRAIN])
def test_every_field_of_dflash_config_is_found_at_the_root_too(tmp_path, shape):
    flat = without(shape, "dflash_config") | shape["dflash_config"]
    assert load(tmp_path, flat) == load(tmp_path, shape)


def test_a_field_of_dflash_config_comes_before_the_root(tmp_path):
    own = DRAFTER["dflash_config"] | {"block_size": 4, "is_causal": True}
    other = {"block_size": 8, "is_causal": False, "mask_token_id": 1, "target_layer_ids": [1]}
    config = load(tmp_path, DRAFTER | other | {"dflash_config": own})
    assert config == load(tmp_path, without(DRAFTER, "block_size") | {"dflash_config": own})
    assert (config.block_size, config.is_causal) == (4, True)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_is_causal_overrides_both_kinds_of_layers(tmp_path, is_causal, nested):
    own = {"is_causal": is_causal}
    changes = {"dflash_config": RETRAIN["dflash_config"] | own} if nested else own
    config = load(tmp_path, RETRAIN | changes)
    assert config.causal(SLIDING) == config.causal(FULL) == is_causal


# rotary embedding: Transformers is the judge


def theirs(values, positions):
    """Cosines and sines of Transformers, [positions, 2, D/2]."""
    names = ("max_position_embeddings", "head_dim", "rope_theta", "rope_scaling", "rope_parameters")
    given = {name: deepcopy(values[name]) for name in names if values.get(name) is not None}
    if "original_max_position_embeddings" in values:
        given["original_max_position_embeddings"] = values["original_max_position_embeddings"]
    rotary = Qwen3RotaryEmbedding(Qwen3Config(**given))
    cos, sin = rotary(torch.zeros(1), positions[None])
    half = values["head_dim"] // 2
    return torch.stack((cos[0, :, :half], sin[0, :, :half]), dim=1)


FAR = torch.cat((torch.arange(300), torch.arange(262144 - 50, 262144)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"factor": 4.0, "original_max_position_embeddings": 65536},
        {"factor": 1.0},
        {"beta_fast": 16, "beta_slow": 2},
        {"beta_fast": None, "beta_slow": None},
        {"attention_factor": 1.25},
        {"attention_factor": None},
        {"mscale": 0.7, "mscale_all_dim": 1.3},
        {"mscale": 0.7},
        {"mscale_all_dim": 0.7},
        {"mscale": 0.7, "mscale_all_dim": 1.3, "attention_factor": 1.1},
        {"truncate": False},
        {"truncate": True},
        {"beta_slow": 1e-6},
        {"beta_slow": 1e-20},
        {"original_max_position_embeddings": 64, "beta_slow": 0.25, "beta_fast": 0.25},
    ],
)
def test_the_yarn_table_is_that_of_transformers(tmp_path, changes):
    values = PUBLISHED_V1 | {"rope_scaling": YARN | changes}
    config = load(tmp_path, values)
    found = yarn_table(128, config.rope_theta, 262144, CPU, yarn=config.yarn)
    assert torch.equal(found[FAR], theirs(values, FAR))


@pytest.mark.parametrize(
    "values",
    [
        without(V1, "rope_scaling") | {"rope_parameters": V1["rope_scaling"]},
        without(V1, "rope_scaling", "rope_theta")
        | {"rope_parameters": V1["rope_scaling"] | {"rope_theta": 10000.0}},
        V1 | {"rope_theta": 5.0, "rope_scaling": V1["rope_scaling"] | {"rope_theta": 10000.0}},
        V1 | {"rope_scaling": without(V1["rope_scaling"], "rope_type") | {"type": "yarn"}},
        V1 | {"rope_parameters": V1["rope_scaling"]},
        V1
        | {"original_max_position_embeddings": 32}
        | {"rope_scaling": V1["rope_scaling"] | {"original_max_position_embeddings": 99}},
        V1
        | {"max_position_embeddings": 32}
        | {"rope_scaling": without(V1["rope_scaling"], "original_max_position_embeddings")},
        V1 | {"rope_scaling": V1["rope_scaling"] | {"mrope_section": [4, 3, 3]}},
    ],
)
def test_yarn_is_read_wherever_transformers_reads_it(tmp_path, values):
    config = load(tmp_path, values)
    assert config == load(tmp_path, V1)
    found = yarn_table(20, config.rope_theta, 300, CPU, yarn=config.yarn)
    assert torch.equal(found, theirs(values, torch.arange(300)))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": YARN | {"factor": None}}, ["factor", "None"]),
        ({"rope_scaling": YARN | {"factor": -2.0}}, ["factor", "-2.0"]),
        ({"rope_scaling": YARN | {"truncate": "no"}}, ["truncate", "no"]),
        ({"rope_scaling": YARN | {"mscale": 0, "mscale_all_dim": 1}}, ["mscale", "0"]),
        ({"rope_scaling": YARN | {"beta_fast": "32"}}, ["beta_fast", "32"]),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, ["original_max", "0"]),
        ({"rope_scaling": YARN | {"short_factor": [1.0]}}, ["short_factor", "rope_scaling"]),
        ({"rope_scaling": YARN | {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "0.5"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ["rope_type", "linear"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["rope_type", "dynamic"]),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, ["factor", "default"]),
        ({"rope_scaling": {FULL: YARN, SLIDING: YARN}}, [FULL, "rope_scaling"]),
        ({"rope_scaling": "yarn"}, ["rope_scaling", "yarn"]),
        ({"rope_parameters": YARN | {"factor": 2.0}}, ["rope_scaling", "rope_parameters", "2.0"]),
        ({"rope_theta": 1.0}, ["rope_theta", "1.0"]),
        ({"rope_theta": None}, ["rope_theta"]),
        ({"partial_rotary_factor": 0.25}, ["partial_rotary_factor", "0.25"]),
    ],
)
def test_a_rotary_field_that_is_not_honoured_is_named(tmp_path, changes, named):
    refused(tmp_path, PUBLISHED_V1 | changes, named)


# which layers slide


@pytest.mark.parametrize("first", [None, 0, 1, 3, 6, 28])
@pytest.mark.parametrize("flag", [None, False, True])
@pytest.mark.parametrize("window", [None, 64])
def test_layer_kinds_follow_as_in_transformers(tmp_path, flag, first, window):
    fields = {"use_sliding_window": flag, "max_window_layers": first, "sliding_window": window}
    given = {name: value for name, value in fields.items() if value is not None}
    values = without(PUBLISHED_RETRAIN, "layer_types", *fields) | given
    want = Qwen3Config(num_hidden_layers=6, **given).layer_types
    if window is None and SLIDING in want:
        refused(tmp_path, values, ["sliding_window", "missing"])
    else:
        config = load(tmp_path, values)
        assert list(config.layer_types) == want
        assert config.sliding_window == (64 if SLIDING in want else 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": [SLIDING] * 5}, ["layer_types", "6"]),
        ({"layer_types": [SLIDING] * 5 + ["chunked_attention"]}, ["chunked_attention"]),
        ({"layer_types": SLIDING}, ["layer_types"]),
        ({"layer_types": [[SLIDING]] * 6}, ["layer_types"]),
        ({"layer_types": [{}] * 6}, ["layer_types"]),
        ({"use_sliding_window": False}, ["use_sliding_window", "false", "true"]),
        ({"use_sliding_window": "yes"}, ["use_sliding_window", "yes"]),
        ({"sliding_window": None}, ["sliding_window", "missing"]),
        ({"sliding_window": 0}, ["sliding_window", "0"]),
        ({"sliding_window": True}, ["sliding_window", "True"]),
        ({"is_causal": "no"}, ["is_causal", "no"]),
        ({"head_dim": 127}, ["head_dim 127", "odd"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "fp8"]),
        ({"dflash_config": [1]}, ["dflash_config", "[1]"]),
        ({"markov_rank": 256}, ["markov_rank", "256", "DSpark"]),
        ({"enable_confidence_head": True}, ["enable_confidence_head"]),
        ({"selector_rank": 256}, ["selector_rank", "256", "DFlash 2"]),
        ({"conv_kernel_size": 2}, ["conv_kernel_size", "2"]),
        ({"architectures": ["DFlash2DraftModel"]}, ["DFlash2DraftModel"]),
    ],
)
def test_what_is_not_honoured_is_named(tmp_path, changes, named):
    refused(tmp_path, PUBLISHED_RETRAIN | changes, named)


def test_heads_of_other_drafters_are_found_inside_dflash_config_too(tmp_path):
    own = PUBLISHED_RETRAIN["dflash_config"] | {"selector_rank": 256}
    refused(tmp_path, PUBLISHED_RETRAIN | {"dflash_config": own}, ["selector_rank", "256"])


def refused(tmp_path, values, named):
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, values)
    for words in (*named, str(tmp_path / "config.json")):
        assert words in str(caught.value)
