# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tensors of random targets, in every layout that a checkpoint may have.

`target_tensors` draws one set of numbers and names them as Qwen3.5 does; `laid_out` renames, groups
and splits them. So two layouts of one seed hold the same model, whatever the family.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a checkpoint is written."""

    experts: str = "fused"
    """a key of EXPERTS"""
    prefix: str = "model."
    """of the text model; the configuration of qwen3_5_moe is nested under any but this one"""
    head: str = "lm_head.weight"
    has_extras: bool = False
    """tensors of parts that are not run, in shapes that nothing fits"""
    dtype: torch.dtype = torch.float32
    kept: tuple[str, ...] = ()
    """ends of names that stay in float32 whatever dtype is"""
    shards: int = 1


EXTRAS = {
    "model.": ("mtp.fc.weight", "mtp.layers.0.mlp.gate.weight", "model.visual.norm.weight"),
    "model.language_model.": ("mtp.fc.weight", "model.visual.blocks.0.attn.qkv.weight"),
    "language_model.model.": ("language_model.mtp.fc.weight", "vision_tower.norm.weight"),
}
"""by prefix"""


def layer_kinds(config: Config) -> list[str]:
    """The mixer of each layer, listed or by the interval."""
    interval = config.get("full_attention_interval", 4)
    return config.get("layer_types") or [
        "linear_attention" if (i + 1) % interval else "full_attention"
        for i in range(config["num_hidden_layers"])
    ]


def has_router(config: Config, number: int) -> bool:
    """Whether a layer has experts; in Qwen3.5 all have."""
    step, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    return number not in plain and (number + 1) % step == 0


def target_tensors(config: Config, seed: int) -> Tensors:
    """Random tensors: separate projections, fused experts, prefix `model.`."""
    gen = torch.Generator().manual_seed(seed)
    D, V = config["hidden_size"], config["vocab_size"]
    tensors: Tensors = {}

    def put(name: str, *shape: int, scale: float | None = None) -> None:
        spread = shape[-1] ** -0.5 if scale is None else scale
        tensors[name] = torch.randn(shape, generator=gen) * spread

    put("model.embed_tokens.weight", V, D, scale=1.0)
    for number, kind in enumerate(layer_kinds(config)):
        name = f"model.layers.{number}."
        put(f"{name}input_layernorm.weight", D, scale=0.1)
        put(f"{name}post_attention_layernorm.weight", D, scale=0.1)
        mixer = _put_gdn if kind == "linear_attention" else _put_attention
        mixer(put, tensors, config, name, gen)
        put_mlp = _put_moe if has_router(config, number) else _put_mlp
        put_mlp(put, config, f"{name}mlp.")
    put("model.norm.weight", D, scale=0.1)
    if not config["tie_word_embeddings"]:
        put("lm_head.weight", V, D, scale=0.3)
    return tensors


def _put_moe(put: Any, config: Config, name: str) -> None:
    D, E, inner = config["hidden_size"], config["num_experts"], config["moe_intermediate_size"]
    S = config["shared_expert_intermediate_size"]
    put(f"{name}gate.weight", E, D, scale=1.0)
    put(f"{name}experts.gate_up_proj", E, 2 * inner, D)
    put(f"{name}experts.down_proj", E, D, inner)
    put(f"{name}shared_expert.gate_proj.weight", S, D)
    put(f"{name}shared_expert.up_proj.weight", S, D)
    put(f"{name}shared_expert.down_proj.weight", D, S)
    put(f"{name}shared_expert_gate.weight", 1, D)


def _put_mlp(put: Any, config: Config, name: str) -> None:
    D, inner = config["hidden_size"], config["intermediate_size"]
    put(f"{name}gate_proj.weight", inner, D)
    put(f"{name}up_proj.weight", inner, D)
    put(f"{name}down_proj.weight", D, inner)


def _put_gdn(put: Any, tensors: Any, config: Config, layer: str, gen: torch.Generator) -> None:
    name, D = f"{layer}linear_attn.", config["hidden_size"]
    H, K = config["linear_num_key_heads"], config["linear_key_head_dim"]
    HV, V = config["linear_num_value_heads"], config["linear_value_head_dim"]
    C = 2 * H * K + HV * V
    for part, rows in (("qkv", C), ("z", HV * V), ("b", HV), ("a", HV)):
        put(f"{name}in_proj_{part}.weight", rows, D)
    put(f"{name}conv1d.weight", C, 1, config["linear_conv_kernel_dim"])
    tensors[f"{name}A_log"] = torch.rand(HV, generator=gen) * 2 - 1
    put(f"{name}dt_bias", HV, scale=0.5)
    tensors[f"{name}norm.weight"] = 1 + 0.1 * torch.randn(V, generator=gen)
    put(f"{name}out_proj.weight", D, HV * V)


def _put_attention(put: Any, _: Any, config: Config, layer: str, gen: torch.Generator) -> None:
    name, hidden, D = f"{layer}self_attn.", config["hidden_size"], config["head_dim"]
    H, HKV = config["num_attention_heads"], config["num_key_value_heads"]
    put(f"{name}q_proj.weight", 2 * H * D, hidden)
    put(f"{name}k_proj.weight", HKV * D, hidden)
    put(f"{name}v_proj.weight", HKV * D, hidden)
    put(f"{name}o_proj.weight", hidden, H * D)
    put(f"{name}q_norm.weight", D, scale=0.1)
    put(f"{name}k_norm.weight", D, scale=0.1)


def laid_out(tensors: Tensors, config: Config, layout: Layout) -> Tensors:
    """The same numbers under the names of a family and a layout, in the dtypes of a file."""
    if config["model_type"] == "qwen3_next":
        tensors = _grouped(tensors, config)
    tensors = EXPERTS[layout.experts](tensors)
    named = {_renamed(name, layout): x for name, x in tensors.items()}
    stored = {n: x if n.endswith(layout.kept) else x.to(layout.dtype) for n, x in named.items()}
    extras = EXTRAS[layout.prefix] if layout.has_extras else ()
    return stored | {name: torch.ones(3, 5, dtype=layout.dtype) for name in extras}


def _renamed(name: str, layout: Layout) -> str:
    if name == "lm_head.weight":
        return layout.head
    return layout.prefix + name.removeprefix("model.")


def _grouped(tensors: Tensors, config: Config) -> Tensors:
    """Projections as Qwen3-Next has them: by key head, each with the value heads it serves."""
    H, K = config["linear_num_key_heads"], config["linear_key_head_dim"]
    found = dict(tensors)
    for first in [name for name in tensors if name.endswith("in_proj_qkv.weight")]:
        name = first.removesuffix("qkv.weight")
        qkv, z, b, a = (found.pop(f"{name}{part}.weight") for part in ("qkv", "z", "b", "a"))
        q, k, v = qkv.split((H * K, H * K, len(z)))
        for part, whole in (("qkvz", (q, k, v, z)), ("ba", (b, a))):
            groups = zip(*(x.chunk(H) for x in whole), strict=True)
            found[f"{name}{part}.weight"] = torch.cat([x for group in groups for x in group])
    return found


def _as_weights(tensors: Tensors) -> Tensors:
    return {f"{n}.weight" if ".experts." in n else n: x for n, x in tensors.items()}


def _one_by_one(tensors: Tensors) -> Tensors:
    found: Tensors = {}
    for name, x in tensors.items():
        experts, _, part = name.partition(".experts.")
        for expert, matrix in enumerate(x if part else ()):
            halves = matrix.chunk(2) if part == "gate_up_proj" else (matrix,)
            names = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
            for half, its in zip(halves, names, strict=True):
                found[f"{experts}.experts.{expert}.{its}.weight"] = half.contiguous()
        if not part:
            found[name] = x
    return found


EXPERTS: dict[str, Callable[[Tensors], Tensors]] = {
    "fused": lambda tensors: tensors,
    "fused, as weights": _as_weights,
    "one by one": _one_by_one,
}
"""ways to store the experts of a layer"""
