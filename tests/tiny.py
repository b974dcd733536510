# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tiny random checkpoints in the official formats, and a drafter that follows a script.

Head counts and widths differ from each other wherever the format allows it, so that a mixed-up
dimension cannot pass.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from hybridspec.core.records import Block
from hybridspec.models.dflash import DraftState
from tests.tiny_target import Layout, laid_out, target_tensors

VOCAB = 288
STOP_ID = 256
MASK_ID = 257

TARGET: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
    },
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "eos_token_id": STOP_ID,
    "dtype": "float32",
}

NEXT: dict[str, Any] = {
    name: value
    for name, value in TARGET.items()
    if name not in ("layer_types", "rope_parameters", "tie_word_embeddings", "attention_bias")
} | {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "full_attention_interval": 4,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "intermediate_size": 28,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
"""the same sizes as Qwen3-Next writes them"""
FAMILIES = {"qwen3_5_moe": TARGET, "qwen3_next": NEXT}

DRAFTER: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["DFlashDraftModel"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "block_size": 16,
    "num_target_layers": 4,
    "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [0, 2, 3]},
}

V1: dict[str, Any] = DRAFTER | {
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "max_position_embeddings": 512,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
    "layer_types": ["full_attention"] * 3,
    "use_sliding_window": False,
    "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": [1, 3]},
}
"""the first drafter of Qwen3.6-35B-A3B in small: all layers full, YaRN"""

RETRAIN: dict[str, Any] = {name: DRAFTER[name] for name in DRAFTER if name != "block_size"} | {
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "use_sliding_window": True,
    "sliding_window": 24,
    "dflash_config": {
        "block_size": 16,
        "mask_token_id": MASK_ID,
        "target_layer_ids": [0, 1, 2, 3],
    },
}
"""its retrain in small: sliding layers before a full one, more taps"""


def write_target(
    directory: Path,
    *,
    family: str = "qwen3_5_moe",
    layout: Layout = Layout(),  # noqa: B008 (frozen)
    seed: int = 0,
    **changes: Any,
) -> Path:
    """A random target checkpoint with its tokenizer."""
    config = FAMILIES[family] | changes
    return write_laid_out(directory, target_tensors(config, seed), config, layout)


def write_laid_out(
    directory: Path, tensors: dict[str, Tensor], config: dict[str, Any], layout: Layout
) -> Path:
    """Tensors as `target_tensors` names them, written as a checkpoint of a layout."""
    is_nested = layout.prefix != "model." and config["model_type"] == TARGET["model_type"]
    whole = {"model_type": "qwen3_5_moe", "text_config": config} if is_nested else config
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", whole)
    write_json(directory / "generation_config.json", {"eos_token_id": [STOP_ID]})
    write_shards(directory, laid_out(tensors, config, layout), layout.shards)
    write_tokenizer(directory)
    return directory


def write_shards(directory: Path, tensors: dict[str, Tensor], shards: int) -> None:
    """One file, or several with an index."""
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
        return
    names = sorted(tensors)
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    for place, file in enumerate(files):
        save_file({name: tensors[name] for name in names[place::shards]}, directory / file)
    weight_map = {name: files[place % shards] for place, name in enumerate(names)}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    write_json(directory / "model.safetensors.index.json", index)


def write_drafter(
    directory: Path, *, seed: int = 1, shape: dict[str, Any] = DRAFTER, **changes: Any
) -> Path:
    """A random drafter checkpoint: DRAFTER, V1, RETRAIN or another shape with changes."""
    config = shape | changes
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    save_file(drafter_tensors(config, seed), directory / "model.safetensors")
    return directory


def write_tokenizer(directory: Path) -> None:
    """One token a byte, then the specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|mask|>"])
    backend.save(str(directory / "tokenizer.json"))


def write_json(path: Path, values: Any) -> None:
    """One JSON file."""
    path.write_text(json.dumps(values), encoding="utf-8")


def drafter_tensors(config: dict[str, Any], seed: int) -> dict[str, Tensor]:
    """Random tensors in the layout of z-lab and of speculators."""
    gen = torch.Generator().manual_seed(seed)
    if "speculators_model_type" in config:
        taps = len(config["aux_hidden_state_layer_ids"])
        config = config["transformer_layer_config"]
    else:
        taps = len(config["dflash_config"]["target_layer_ids"])
    hidden, inner, D = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    H, HKV = config["num_attention_heads"], config["num_key_value_heads"]
    shapes = {
        "fc.weight": (hidden, hidden * taps),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for number in range(config["num_hidden_layers"]):
        shapes |= {
            f"layers.{number}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (H * D, hidden),
                "self_attn.k_proj": (HKV * D, hidden),
                "self_attn.v_proj": (HKV * D, hidden),
                "self_attn.o_proj": (hidden, H * D),
                "self_attn.q_norm": (D,),
                "self_attn.k_norm": (D,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }
    return {
        name: 1 + 0.1 * torch.randn(shape, generator=gen)
        if len(shape) == 1
        else torch.randn(shape, generator=gen) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }


@dataclass
class ScriptedDrafter:
    """Proposes the continuation `script`, spoiled where a test wants it."""

    script: list[int]
    """tokens that plain decoding emits after the prompt"""
    prompt: int
    """tokens of the prompt"""
    block_size: int = 16
    right: list[int] = field(default_factory=list[int])
    """drafts to get right, round by round; beyond the list all of them"""
    rounds: int = 0
    """drafted rounds so far"""
    wrong: int = 7

    def empty_state(self, positions: int) -> DraftState:
        """No memory but the count of committed positions."""
        return DraftState(keys=torch.empty(0), values=torch.empty(0), ring=torch.empty(0))

    def take(self, taps: Tensor, state: DraftState, rows: Tensor | None = None) -> None:
        """Count what was committed."""
        state.injected += len(taps) if rows is None else int(rows)

    def propose(self, anchor: Tensor, state: DraftState) -> Block:
        """The next of the script, with the wished number of right drafts."""
        right = self.right[self.rounds] if self.rounds < len(self.right) else self.block_size
        self.rounds += 1
        emitted = state.injected + state.waiting - self.prompt + 1
        assert int(anchor) == self.script[emitted - 1], "the text left its script"
        drafts = (self.script[emitted:] + [0] * self.block_size)[: self.block_size - 1]
        if right < len(drafts):
            drafts[right] = (drafts[right] + self.wrong) % VOCAB
        tokens = torch.tensor([int(anchor), *drafts])
        return Block(tokens=tokens, log_odds=torch.zeros(self.block_size - 1))


class SteeredDrafter(ScriptedDrafter):
    """Proposes by script, beside a real drafter that reads and drafts as ever."""

    real: Any = None

    def empty_state(self, positions: int) -> DraftState:
        """The real drafter's."""
        return self.real.empty_state(positions)

    def take(self, taps: Tensor, state: DraftState, rows: Tensor | None = None) -> None:
        """For the real drafter."""
        self.real.take(taps, state, rows)

    def propose(self, anchor: Tensor, state: DraftState) -> Block:
        """By script; the real drafter writes the rows of a block that may be rejected in part."""
        self.real.propose(anchor, state)
        return super().propose(anchor, state)
