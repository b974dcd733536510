# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The target's whole forward pass: the pieces of target_model around a delta rule."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import target_model as model
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from target_model import DeltaRule, Shape, Weights
from torch import Tensor

COMPILED = functools.partial(torch.compile, dynamic=False)
"""The wrap of a Target that runs on the GPU; every piece is compiled once a shape."""


def identity(function: Callable) -> Callable:
    """The wrap that leaves a piece as it is."""
    return function


def delta_rule_plain(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """Token by token in fp32, as the formulas read; slow, for checks on small inputs."""
    repeat = v.shape[2] // k.shape[2]
    unit = lambda t: t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)  # noqa: E731
    q, k = (unit(t.float()).repeat_interleave(repeat, 2) for t in (q, k))
    q, v = q / q.shape[-1] ** 0.5, v.float()
    state = q.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        read = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        update = beta[:, t, :, None] * (v[:, t] - read)
        state = state + k[:, t, ..., None] * update[..., None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state


def delta_rule_chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """The chunked kernels of flash-linear-attention (Triton, needs a GPU)."""
    import gated_backward  # noqa: F401  (registers a backend)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return chunk_gated_delta_rule(
        q, k, v, g, beta, output_final_state=True, use_qk_l2norm_in_kernel=True
    )


def head_loss(x: Tensor, labels: Tensor, top: Weights, shape: Shape) -> Tensor:
    """Mean cross entropy in nats; x [B, T, H], labels [B, T]."""
    hidden = model.norm0(x, top["model.norm.weight"], shape.eps)
    logits = model.linear(hidden, top["lm_head.weight"], shape).float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Weights and the pieces that run them."""

    shape: Shape
    top: Weights
    layers: list[Weights]
    delta_rule: DeltaRule
    wrap: Callable[[Callable], Callable] = identity
    """COMPILED or identity; every piece is wrapped once."""

    def piece(self, function: Callable) -> Callable:
        return _wrapped(self.wrap, function)

    def layer(
        self, x: Tensor, place: int, cache: list[tuple[Tensor, ...]]
    ) -> tuple[Tensor, Tensor]:
        """One decoder layer of x [B, T, H] from position 0; appends its decode state to cache."""
        weights, shape = self.layers[place], self.shape
        if shape.is_full[place]:
            positions = torch.arange(x.shape[1], device=x.device)
            q, k, v, gate = self.piece(model.attention_before)(x, positions, weights, shape)
            cache.append((k, v))
            repeat = shape.heads // shape.kv_heads
            k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.piece(model.attention_after)(x, mixed, gate, weights, shape)
        q, k, v, g, beta, z, tail = self.piece(model.gdn_before)(x, weights, shape)
        y, state = self.delta_rule(q, k, v, g, beta)
        cache.append((state, tail))
        return self.piece(model.gdn_after)(x, y, z, weights, shape)

    def trunk(
        self, tokens: Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor, list[Tensor], list[tuple[Tensor, ...]]]:
        """(x before the final norm, mean load-balance loss, tapped outputs, decode states)."""
        x = F.embedding(tokens, self.top["model.embed_tokens.weight"]).float()
        balances, tapped, cache = [], [], []
        for place in range(len(self.layers)):
            x, balance = self.layer(x, place, cache)
            balances.append(balance)
            if place in taps:
                tapped.append(x)
        return x, torch.stack(balances).mean(), tapped, cache

    def loss(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(cross entropy in nats, load-balance loss) of tokens and labels [B, T]."""
        x, balance, _, _ = self.trunk(tokens)
        return self.piece(head_loss)(x, labels, self.top, self.shape), balance

    def logits(self, x: Tensor) -> Tensor:
        """fp32 logits of x, the stream before the final norm."""
        hidden = model.norm0(x, self.top["model.norm.weight"], self.shape.eps)
        return model.linear(hidden, self.top["lm_head.weight"], self.shape).float()

    def named(self) -> dict[str, Tensor]:
        """Every parameter by its name in training (see init_layer)."""
        return self.top | {
            f"model.layers.{i}.{name}": weight
            for i, layer in enumerate(self.layers)
            for name, weight in layer.items()
        }


@functools.cache
def _wrapped(wrap: Callable[[Callable], Callable], function: Callable) -> Callable:
    return wrap(function)


def target_config(shape: Shape) -> dict[str, object]:
    """config.json of the target as Transformers reads it."""
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": len(shape.is_full),
        "layer_types": ["full_attention" if full else "linear_attention" for full in shape.is_full],
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": shape.rope_theta,
            "partial_rotary_factor": shape.rotary_dim / shape.head_dim,
        },
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.delta_dim,
        "linear_value_head_dim": shape.delta_dim,
        "linear_conv_kernel_dim": 4,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.expert_size,
        "shared_expert_intermediate_size": shape.shared_size,
        "router_aux_loss_coef": 0.01,
        "hidden_act": "silu",
        "attention_bias": False,
        "attn_output_gate": True,
        "rms_norm_eps": shape.eps,
        "initializer_range": 0.02,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "use_cache": True,
    }


def save_target(target: Target, folder: Path) -> None:
    """Two bf16 shards in the official fused layout, their index and the two configs."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, weight in target.named().items():
        weight = weight.detach()
        if name.endswith("experts.down"):
            name, weight = name.replace("experts.down", "experts.down_proj"), weight.mT
        tensors[name] = weight.to("cpu", torch.bfloat16).contiguous()
    middle = f"model.layers.{len(target.layers) // 2}."
    second = {
        name
        for name in tensors
        if name == "lm_head.weight" or (name.startswith("model.layers.") and name >= middle)
    }
    where = {
        n: f"model-0000{2 if n in second else 1}-of-00002.safetensors" for n in sorted(tensors)
    }
    for file in sorted(set(where.values())):
        part = {n: tensors[n] for n in where if where[n] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(target_config(target.shape), indent=1) + "\n")
    generation = {"eos_token_id": 0, "pad_token_id": 0, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")


def load_target(
    folder: Path, shape: Shape, device: torch.device, delta_rule: DeltaRule, wrap=identity
) -> Target:
    """The target that save_target wrote, as fp32 tensors without gradients."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    top, layers = {}, [{} for _ in shape.is_full]
    for name, weight in tensors.items():
        weight = weight.to(device, torch.float32)
        if name.endswith("experts.down_proj"):
            name, weight = name.replace("experts.down_proj", "experts.down"), weight.mT.contiguous()
        if name.startswith("model.layers."):
            place, short = name.removeprefix("model.layers.").split(".", 1)
            layers[int(place)][short] = weight
        else:
            top[name] = weight
    return Target(shape=shape, top=top, layers=layers, delta_rule=delta_rule, wrap=wrap)
