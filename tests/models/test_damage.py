# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Damage that once loaded without a word, or ended in another library's error."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridspec import LLM, HybridSpecError, SamplingParams
from hybridspec.core.errors import CheckpointError, OptionError, PromptError
from hybridspec.models.state import TargetState
from tests.decoding import CPU
from tests.tiny import DRAFTER, TARGET, write_drafter, write_json, write_target

FEW = SamplingParams(max_new_tokens=2)


@pytest.fixture
def pair(tmp_path):
    return write_target(tmp_path / "target"), write_drafter(tmp_path / "drafter")


def with_rope(**changes):
    return {"rope_parameters": TARGET["rope_parameters"] | changes}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": -5}, "rms_norm_eps"),
        (with_rope(rope_theta=0), "rope_theta"),
        (with_rope(rope_theta=10**400), "rope_theta"),
        (with_rope(partial_rotary_factor=float("nan")), "partial_rotary_factor"),
        ({"max_position_embeddings": 10**15}, "max_position_embeddings"),
        ({"max_position_embeddings": 10**300}, "max_position_embeddings"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling"),
        ({"norm_topk_prob": False}, "norm_topk_prob"),
        ({"mlp_only_layers": [1]}, "mlp_only_layers"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
    ],
)
def test_a_field_that_would_change_the_result_is_refused_by_name(pair, changes, named):
    write_json(pair[0] / "config.json", TARGET | changes)
    with pytest.raises(CheckpointError, match=named):
        LLM(pair[0], policy="plain")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_a_weight_that_is_no_number_is_refused_by_name(pair, which, value):
    file = pair[which] / "model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[3]
    tensors[name].view(-1)[5] = value
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        LLM(pair[0], draft_model=pair[1])


def test_a_tokenizer_that_truncates_or_pads_leaves_the_prompt_whole(pair):
    path = pair[0] / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["truncation"] = {
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    tokenizer["padding"] = {
        "strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    write_json(path, tokenizer)
    llm = LLM(pair[0], policy="plain")
    assert len(llm.pair.tokenizer.encode("hello")) == 5


def test_taps_keep_the_order_that_the_drafter_lists(pair):
    """Also twice the same: the columns of fc belong to places in the list."""
    ids = [3, 0, 3]
    write_drafter(pair[1], dflash_config=DRAFTER["dflash_config"] | {"target_layer_ids": ids})
    target = LLM(pair[0], draft_model=pair[1]).pair.target
    tokens = torch.arange(9)
    listed = target.read_prompt(tokens, TargetState.empty(target.config, 9, CPU)).taps
    sole = replace(target, taps=(0,))
    first = sole.read_prompt(tokens, TargetState.empty(target.config, 9, CPU)).taps
    left, middle, right = listed.chunk(3, dim=1)
    assert torch.equal(middle, first)
    assert torch.equal(left, right)
    assert not torch.equal(left, middle)
    assert LLM(pair[0], draft_model=pair[1]).generate("abc", FEW).token_ids


def test_what_generation_config_asks_for_and_does_not_get_is_said(pair, caplog):
    asked = {"repetition_penalty": 1.3, "suppress_tokens": [4], "min_length": 0, "do_sample": True}
    write_json(pair[0] / "generation_config.json", asked)
    LLM(pair[0], policy="plain")
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "repetition_penalty, suppress_tokens" in said
    assert "sampling" in said
    assert "min_length" not in said


@pytest.mark.parametrize("model", [0, b"x", [], True, ""])
def test_a_name_that_is_none_is_refused(model):
    with pytest.raises(OptionError, match="model must be"):
        LLM(model, policy="plain")


@pytest.mark.parametrize("name", ["x" * 5000, "a/" + "x" * 5000])
def test_a_name_that_no_file_system_takes_is_refused(name):
    with pytest.raises(HybridSpecError, match="xxx"):
        LLM(name, policy="plain")


@pytest.mark.parametrize("prompt", [None, 3, b"x", {"a": 1}, ("a",), "\ud800"])
def test_a_prompt_that_is_no_text_is_refused(pair, prompt):
    with pytest.raises(PromptError):
        LLM(pair[0], policy="plain").generate(prompt, FEW)


@pytest.mark.parametrize("params", [0, 4, {"max_new_tokens": 3}])
def test_params_of_another_type_are_refused(pair, params):
    with pytest.raises(OptionError, match="SamplingParams"):
        LLM(pair[0], policy="plain").generate("a", params)


@pytest.mark.parametrize("change", [{"policy": ""}, {"mode": ""}, {"policy": {}}])
def test_using_nothing_known_is_refused(pair, change):
    with pytest.raises(OptionError):
        LLM(pair[0], policy="plain").using(**change)


def test_a_bad_prompt_in_a_list_is_found_before_any_is_decoded(pair, monkeypatch):
    llm = LLM(pair[0], policy="plain")
    monkeypatch.setattr(llm, "stream", lambda *_: pytest.fail("decoded"))
    with pytest.raises(PromptError, match="empty"):
        llm.generate(["a", ""], FEW)


def test_the_hosts_default_dtype_changes_nothing(pair):
    want = LLM(pair[0], draft_model=pair[1], policy="fixed").generate("abc", FEW)
    torch.set_default_dtype(torch.float64)
    try:
        found = LLM(pair[0], draft_model=pair[1]).generate("abc", FEW)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.token_ids == want.token_ids
