# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A checkpoint as files in memory, and the valid ones that mutations start from."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load, save, save_file
from torch import Tensor

from tests.tiny import (
    DRAFTER,
    MASK_ID,
    STOP_ID,
    drafter_tensors,
    write_json,
    write_target,
    write_tokenizer,
)
from tests.tiny_target import Layout

INDEX = "model.safetensors.index.json"
Json = dict[str, Any]


@dataclass
class Checkpoint:
    """The files of a directory, not yet written."""

    files: dict[str, bytes]
    folders: set[str] = field(default_factory=set[str])
    links: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, directory: Path) -> "Checkpoint":
        """All files of a directory."""
        paths = [path for path in sorted(directory.iterdir()) if path.is_file()]
        return cls({path.name: path.read_bytes() for path in paths})

    def copy(self) -> "Checkpoint":
        """The same files, to be changed."""
        return Checkpoint(dict(self.files))

    def write(self, directory: Path) -> Path:
        """Write everything into a fresh directory."""
        directory.mkdir(parents=True)
        for name, content in self.files.items():
            (directory / name).write_bytes(content)
        for name in self.folders:
            (directory / name).mkdir()
        for name, end in self.links.items():
            (directory / name).symlink_to(end)
        return directory

    def weights(self) -> list[str]:
        """Names of the files with tensors."""
        return [name for name in self.files if name.endswith(".safetensors")]

    def json(self, name: str) -> Any:
        """A file's JSON."""
        return json.loads(self.files[name])

    def put_json(self, name: str, values: Any) -> None:
        """Write a file's JSON."""
        self.files[name] = json.dumps(values).encode()

    def edit(self, rng: Random, change: Callable[[dict[str, Tensor]], None]) -> None:
        """Change the tensors of a file, and the index after them."""
        file = rng.choice(self.weights())
        tensors = load(self.files[file])
        before = set(tensors)
        change(tensors)
        self.files[file] = save({name: x.contiguous() for name, x in tensors.items()})
        if INDEX in self.files and rng.random() < 0.8:
            index = self.json(INDEX)
            for name in before - tensors.keys():
                del index["weight_map"][name]
            index["weight_map"] |= dict.fromkeys(tensors, file)
            self.put_json(INDEX, index)

    def edit_config(self, change: Callable[[Json], None]) -> None:
        """Change the configuration."""
        config = self.json("config.json")
        change(config)
        self.put_json("config.json", config)


Mutation = Callable[[Random, Checkpoint], None]


def split(rng: Random, it: Checkpoint) -> None:
    """A checkpoint in one file becomes one in two shards, still sound."""
    if INDEX in it.files:
        return
    tensors = load(it.files.pop("model.safetensors"))
    place = {name: f"{rng.choice('ab')}.safetensors" for name in tensors}
    for file in sorted(set(place.values())):
        it.files[file] = save({name: x for name, x in tensors.items() if place[name] == file})
    it.put_json(INDEX, {"metadata": {}, "weight_map": place})


SMALL: Json = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "num_experts": 4,
    "moe_intermediate_size": 4,
    "shared_expert_intermediate_size": 8,
}
"""of a target that loads in a few milliseconds, here and in Transformers"""
NESTED = "model.language_model."
SECOND: Json = {"full_attention_interval": 2, "layer_types": None, "rope_theta": 5000.0}
TARGETS: dict[str, tuple[str, Layout, Json]] = {
    "plain": ("qwen3_5_moe", Layout(), {}),
    "official": ("qwen3_5_moe", Layout(prefix=NESTED, has_extras=True, shards=2), {}),
    "saved again": ("qwen3_5_moe", Layout(prefix=NESTED, experts="one by one", shards=2), {}),
    "tied": ("qwen3_5_moe", Layout(prefix=NESTED), {"tie_word_embeddings": True}),
    "converted": (
        "qwen3_5_moe",
        Layout(prefix="language_model.model.", experts="fused, as weights"),
        {},
    ),
    "next": ("qwen3_next", Layout(experts="one by one"), {"mlp_only_layers": [0]}),
    "next in shards": ("qwen3_next", Layout(shards=3, has_extras=True), SECOND),
    "no GDN": (
        "qwen3_5_moe",
        Layout(experts="one by one"),
        {"layer_types": ["full_attention"] * 2},
    ),
    "no attention": ("qwen3_next", Layout(), {"layer_types": ["linear_attention"] * 2}),
}
_DRAFT: Json = DRAFTER | {
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_target_layers": 2,
}
_HEART: Json = {"mask_token_id": MASK_ID, "target_layer_ids": [0, 1]}
DRAFTERS: dict[str, Json] = {
    "drafter": _DRAFT | {"dflash_config": _HEART},
    "flat drafter": {n: x for n, x in _DRAFT.items() if n != "dflash_config"} | _HEART,
    "drafter saved again": {
        name: value
        for name, value in _DRAFT.items()
        if name not in ("rope_theta", "rope_scaling", "block_size", "num_target_layers")
    }
    | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "dflash_config": _HEART | {"block_size": 8},
    },
    "stretched drafter": _DRAFT
    | {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
        },
        "dflash_config": _HEART,
    },
    "sliding drafter": _DRAFT
    | {
        "layer_types": ["sliding_attention", "full_attention"],
        "use_sliding_window": True,
        "sliding_window": 5,
        "dflash_config": _HEART,
    },
}


def sound(directory: Path) -> dict[str, Checkpoint]:
    """Valid checkpoints by name, written below a directory to be read from there."""
    for name, (family, layout, changes) in TARGETS.items():
        write_target(directory / name, family=family, layout=layout, **(SMALL | changes))
    for name, config in DRAFTERS.items():
        _write_drafter(directory / name, config)
    return {name: Checkpoint.read(directory / name) for name in (*TARGETS, *DRAFTERS)}


def _write_drafter(directory: Path, config: Json) -> None:
    """With the files that a drafter may bring, but need not."""
    directory.mkdir()
    write_json(directory / "config.json", config)
    tensors = drafter_tensors(config | {"dflash_config": _HEART}, 1)
    save_file(tensors, directory / "model.safetensors")
    write_json(directory / "generation_config.json", {"eos_token_id": [STOP_ID]})
    write_tokenizer(directory)
