# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A checkpoint that is not whole does not load, and the complaint names the tensor."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridspec.core.errors import CheckpointError
from hybridspec.models.fingerprint import fingerprint
from tests.decoding import load, load_draft
from tests.tiny import write_drafter, write_json, write_target

ROUTER = "model.layers.2.mlp.gate.weight"
NAMES = [
    "model.embed_tokens.weight",
    "lm_head.weight",
    "model.norm.weight",
    "model.layers.0.linear_attn.A_log",
    "model.layers.3.self_attn.q_norm.weight",
    "model.layers.1.mlp.experts.down_proj",
    ROUTER,
]


@pytest.fixture
def directory(tmp_path):
    return write_target(tmp_path / "target")


def change(directory, edit):
    file = directory / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)


def refused(directory, *named):
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    for words in (str(directory), *named):
        assert words in str(caught.value)


def shard(directory, *, index=None, twice=()):
    """Split the file in two by name; `index` edits the weight map, `twice` stands in both."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    files = {"a.safetensors": {}, "b.safetensors": {}}
    weight_map = {}
    for place, (name, x) in enumerate(sorted(tensors.items())):
        file = sorted(files)[place % 2]
        weight_map[name] = file
        for into in files if name in twice else (file,):
            files[into][name] = x
    for file, part in files.items():
        save_file(part, directory / file)
    if index:
        index(weight_map)
    write_json(directory / "model.safetensors.index.json", {"weight_map": weight_map})


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor_is_named(directory, name):
    change(directory, lambda tensors: tensors.pop(name))
    refused(directory, repr(name), "missing")


@pytest.mark.parametrize("name", ["model.layers.4.mlp.gate.weight", "lm_head.bias", "stray"])
def test_an_unknown_tensor_is_named(directory, name):
    change(directory, lambda tensors: tensors.update({name: torch.ones(2)}))
    refused(directory, repr(name), "unknown")


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_another_shape_is_named(directory, name):
    def transpose(tensors):
        x = tensors[name]
        tensors[name] = x.flatten()[:-1].clone() if x.dim() == 1 else x.transpose(0, 1).contiguous()

    change(directory, transpose)
    refused(directory, repr(name), "shape")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn])
def test_a_tensor_of_another_dtype_is_named(directory, dtype):
    change(directory, lambda tensors: tensors.update({ROUTER: tensors[ROUTER].to(dtype)}))
    refused(directory, repr(ROUTER), "BF16, F16, F32")


def test_a_truncated_file_is_named(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refused(directory, str(file))


def test_shards_load_to_the_same_tensors(directory, tmp_path):
    whole = load(directory)
    shard(directory)
    split = load(directory)
    assert torch.equal(split.head, whole.head)
    assert torch.equal(split.layers[3].mixer.in_proj, whole.layers[3].mixer.in_proj)


def test_a_tensor_in_two_shards_is_named(directory):
    shard(directory, twice=(ROUTER,))
    refused(directory, repr(ROUTER), "a.safetensors")


def test_a_tensor_that_the_index_has_and_no_shard_is_named(directory):
    shard(directory, index=lambda listed: listed.update({"ghost": "a.safetensors"}))
    refused(directory, "'ghost'", "index")


def test_a_tensor_that_a_shard_has_and_not_the_index_is_named(directory):
    shard(directory, index=lambda listed: listed.pop(ROUTER))
    refused(directory, repr(ROUTER), "index")


def test_a_missing_shard_is_named(directory):
    shard(directory)
    (directory / "b.safetensors").unlink()
    refused(directory, "b.safetensors", "does not exist")


def test_a_damaged_index_is_named(directory):
    shard(directory)
    write_json(directory / "model.safetensors.index.json", {"weight_map": ["a"]})
    refused(directory, "weight_map")


@pytest.mark.parametrize("name", ["fc.weight", "layers.1.self_attn.k_norm.weight"])
def test_a_drafter_is_held_to_the_same(target, tmp_path, name):
    directory = write_drafter(tmp_path / "drafter")
    change(directory, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"{name}' is missing"):
        load_draft(directory, target)
    change(directory, lambda tensors: tensors.update({name: torch.ones(3, 3)}))
    with pytest.raises(CheckpointError, match=f"{name}' has shape"):
        load_draft(directory, target)


def test_an_embedding_in_a_drafter_must_be_the_targets(target, tmp_path):
    directory = write_drafter(tmp_path / "drafter")
    change(directory, lambda tensors: tensors.update({"embed_tokens.weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"'embed_tokens\.weight' has shape \(2,\)"):
        load_draft(directory, target)


def test_a_fingerprint_tells_checkpoints_apart(directory, tmp_path):
    assert fingerprint(directory) == fingerprint(write_target(tmp_path / "same"))
    others = [write_target(tmp_path / "seed", seed=9), write_target(tmp_path / "eps")]
    change(others[1], lambda tensors: tensors["lm_head.weight"][-1].add_(1e-3))
    names = {fingerprint(path) for path in (directory, *others)}
    assert len(names) == 3
