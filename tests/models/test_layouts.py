# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Every layout of a checkpoint holds the same model; what fits none is refused by name."""

import json
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridspec.core.errors import CheckpointError
from tests.decoding import load, load_tapped, logits_of, read_text
from tests.models.test_parity import TOKENS, assert_close, logits_of_theirs
from tests.tiny import FAMILIES, NEXT, write_laid_out, write_target
from tests.tiny_target import EXPERTS, EXTRAS, Layout, target_tensors

PREFIXES = tuple(EXTRAS)
FIRST = "model.layers.0.mlp.experts."


def logits(directory):
    target = load_tapped(directory)
    return logits_of(target, read_text(target, TOKENS[:20]))


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    """Logits of one set of numbers, as Qwen3.5 writes them."""
    return logits(write_target(tmp_path_factory.mktemp("want")))


@pytest.mark.parametrize(
    ("family", "experts", "prefix", "shards"),
    [*product(FAMILIES, EXPERTS, PREFIXES, [1]), *product(FAMILIES, EXPERTS, PREFIXES[:1], [3])],
)
def test_every_layout_of_the_same_numbers_reads_the_same(
    tmp_path, want, family, experts, prefix, shards
):
    layout = Layout(experts=experts, prefix=prefix, shards=shards, has_extras=True)
    assert torch.equal(logits(write_target(tmp_path, family=family, layout=layout)), want)


@pytest.mark.parametrize("experts", EXPERTS)
def test_layers_without_a_router_load_beside_every_expert_layout(tmp_path, experts):
    changes = {"family": "qwen3_next", "mlp_only_layers": [0, 2]}
    layout = Layout(experts=experts, shards=2, has_extras=True)
    found = logits(write_target(tmp_path / "a", layout=layout, **changes))
    assert torch.equal(found, logits(write_target(tmp_path / "b", **changes)))


def test_layers_of_one_file_may_differ_in_their_expert_layout(tmp_path, want):
    """Each layer's names are read for themselves."""
    other = load_file(
        write_target(tmp_path / "a", layout=Layout(experts="one by one")) / "model.safetensors"
    )
    file = write_target(tmp_path / "b") / "model.safetensors"
    tensors = load_file(file)
    mine = {name: x for name, x in tensors.items() if not name.startswith(FIRST)}
    save_file(mine | {n: x for n, x in other.items() if n.startswith(FIRST)}, file)
    assert torch.equal(logits(tmp_path / "b"), want)


def test_the_third_prefix_takes_its_head_from_either_place(tmp_path, want):
    for head in ("lm_head.weight", "language_model.lm_head.weight"):
        layout = Layout(prefix="language_model.model.", head=head, has_extras=True)
        assert torch.equal(logits(write_target(tmp_path / head, layout=layout)), want)


def edit(directory, change):
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return directory


def refused(directory, *named):
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    for words in (str(directory), *named):
        assert words in str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("experts", EXPERTS)
def test_a_layer_with_two_expert_layouts_is_refused_naming_the_tensors(tmp_path, family, experts):
    directory = write_target(tmp_path, family=family, layout=Layout(experts=experts))
    for stray in {"gate_up_proj", "down_proj.weight", "3.up_proj.weight"}:
        name = FIRST + stray
        if name in load_file(directory / "model.safetensors"):
            continue
        edit(directory, lambda tensors, name=name: tensors.update({name: torch.ones(3)}))
        refused(directory, repr(name), "experts", "two ways")
        edit(directory, lambda tensors, name=name: tensors.pop(name))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", ["gate", "up", "down"])
@pytest.mark.parametrize("expert", [0, 5, 7])
def test_a_missing_expert_is_named(tmp_path, family, part, expert):
    directory = write_target(tmp_path, family=family, layout=Layout(experts="one by one"))
    name = f"model.layers.2.mlp.experts.{expert}.{part}_proj.weight"
    edit(directory, lambda tensors: tensors.pop(name))
    refused(directory, repr(name), "missing")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_expert_too_many_is_named(tmp_path, family):
    directory = write_target(tmp_path, family=family, layout=Layout(experts="one by one"))
    name = f"{FIRST}8.up_proj.weight"
    edit(directory, lambda tensors: tensors.update({name: torch.ones(12, 32)}))
    refused(directory, repr(name), "unknown")


@pytest.mark.parametrize("experts", ["fused", "fused, as weights"])
@pytest.mark.parametrize("part", ["gate_up_proj", "down_proj"])
def test_fused_experts_of_another_count_or_half_missing_are_named(tmp_path, experts, part):
    directory = write_target(tmp_path, layout=Layout(experts=experts))
    name = FIRST + part + (".weight" if "weights" in experts else "")
    edit(directory, lambda tensors: tensors.update({name: tensors[name][:7].clone()}))
    refused(directory, repr(name), "shape")
    edit(directory, lambda tensors: tensors.pop(name))
    refused(directory, repr(name), "missing")


def test_a_family_is_not_read_as_the_other(tmp_path):
    mine = write_target(tmp_path / "a")
    (mine / "config.json").write_text(json.dumps(NEXT), encoding="utf-8")
    refused(mine, "'model.layers.0.linear_attn.in_proj_qkvz.weight'", "missing")


def test_a_router_where_the_configuration_has_none_is_refused(tmp_path):
    directory = write_target(tmp_path, family="qwen3_next")
    (directory / "config.json").write_text(
        json.dumps(NEXT | {"mlp_only_layers": [0]}), encoding="utf-8"
    )
    refused(directory, "'model.layers.0.mlp.gate_proj.weight'", "missing")


def test_tensors_under_two_prefixes_are_refused(tmp_path):
    directory = write_target(tmp_path, layout=Layout(prefix="model.language_model."))
    edit(directory, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32)}))
    refused(directory, "'model.norm.weight'", "unknown")


def test_norms_that_a_conversion_has_shifted_are_not_shifted_again(tmp_path):
    """MLX adds 1 to the norms and turns the convolution, by which it is told and refused.

    Loaded, its norms would be 1 too large and nothing else would show it.
    """
    directory = write_target(tmp_path, layout=Layout(prefix="language_model.model."))
    name = "language_model.model.layers.0.linear_attn.conv1d.weight"
    edit(directory, lambda t: t.update({name: t[name].transpose(1, 2).contiguous()}))
    refused(directory, repr(name), "shape")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prefix", PREFIXES[:2])
def test_what_transformers_saves_again_reads_the_same(tmp_path, family, prefix):
    """Norms are stored as they were and shifted once, whatever layout it saves."""
    from transformers import AutoModelForCausalLM

    changes = {"mlp_only_layers": [0]} if family == "qwen3_next" else {}
    prefix = "model." if family == "qwen3_next" else prefix
    raw = write_target(
        tmp_path / "raw", family=family, layout=Layout(prefix=prefix, has_extras=True), **changes
    )
    model = AutoModelForCausalLM.from_pretrained(raw, dtype=torch.float32)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(tmp_path / "saved"), logits(raw))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_equal", [True, False])
def test_a_head_in_a_tied_checkpoint_goes_before_the_word_of_the_configuration(
    tmp_path, family, is_equal
):
    """As in Transformers, which ties only what is equal and else warns and keeps both."""
    config = FAMILIES[family] | {"tie_word_embeddings": True}
    tensors = target_tensors(config, 0)
    assert "lm_head.weight" not in tensors
    tied = logits(write_laid_out(tmp_path / "tied", tensors, config, Layout()))
    embedding = tensors["model.embed_tokens.weight"]
    head = embedding.clone() if is_equal else embedding.flip(0)
    directory = write_laid_out(
        tmp_path / "stray", tensors | {"lm_head.weight": head.contiguous()}, config, Layout()
    )
    target = load_tapped(directory)
    assert (target.head is target.embedding) == is_equal
    assert torch.equal(logits(directory), tied) == is_equal
    assert_close(logits_of(target, read_text(target, TOKENS)), logits_of_theirs(directory))


def test_an_untied_checkpoint_without_a_head_is_refused(tmp_path):
    directory = edit(write_target(tmp_path), lambda tensors: tensors.pop("lm_head.weight"))
    refused(directory, "'lm_head.weight'", "missing")
