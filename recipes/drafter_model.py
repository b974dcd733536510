# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The DFlash drafter as functions of plain tensors: all blocks of a batch in one pass.

Row i >= 1 of a block predicts the token at its own position, anchor + i. A block sees the context
strictly before its anchor and all of its own rows. Norms are plain (not zero-centred), as in Qwen3.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """Sizes of the drafter."""

    hidden_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp_size: int = 768
    block_size: int = 16
    taps: tuple[int, ...] = (1, 3, 4, 6)
    target_layers: int = 8
    mask_id: int = 1
    vocab_size: int = 4096
    rope_theta: float = 10000.0
    context: int = 2048
    eps: float = 1e-6
    dtype: torch.dtype = torch.bfloat16


def init_drafter(shape: DrafterShape, seed: int, device: torch.device) -> Weights:
    """Fresh fp32 weights under the names of z-lab's checkpoints."""
    generator = torch.Generator().manual_seed(seed)
    hidden, width = shape.hidden_size, shape.heads * shape.head_dim
    kv_width = shape.kv_heads * shape.head_dim

    def normal(rows: int, cols: int, std: float = 0.02) -> Tensor:
        return torch.randn(rows, cols, generator=generator) * std

    weights = {
        "fc.weight": normal(hidden, len(shape.taps) * hidden),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
    }
    for i in range(shape.layers):
        weights |= {
            f"layers.{i}.input_layernorm.weight": torch.ones(hidden),
            f"layers.{i}.post_attention_layernorm.weight": torch.ones(hidden),
            f"layers.{i}.self_attn.q_proj.weight": normal(width, hidden),
            f"layers.{i}.self_attn.k_proj.weight": normal(kv_width, hidden),
            f"layers.{i}.self_attn.v_proj.weight": normal(kv_width, hidden),
            f"layers.{i}.self_attn.o_proj.weight": normal(hidden, width, 0.01),
            f"layers.{i}.self_attn.q_norm.weight": torch.ones(shape.head_dim),
            f"layers.{i}.self_attn.k_norm.weight": torch.ones(shape.head_dim),
            f"layers.{i}.mlp.gate_proj.weight": normal(shape.mlp_size, hidden),
            f"layers.{i}.mlp.up_proj.weight": normal(shape.mlp_size, hidden),
            f"layers.{i}.mlp.down_proj.weight": normal(hidden, shape.mlp_size, 0.01),
        }
    return {name: w.to(device).requires_grad_() for name, w in weights.items()}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Plain RMS norm in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding on all of x [B, T, heads, D], half-split pairing; positions [B, T]."""
    half = x.shape[-1] // 2
    exponents = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angle = (positions.float()[..., None] * theta**-exponents)[:, :, None]
    low, high = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def keys_values(
    x: Tensor, positions: Tensor, weights: Weights, layer: str, shape: DrafterShape
) -> tuple[Tensor, Tensor]:
    """Normed, rotated keys and values [B, T, kv_heads, D] of rows x [B, T, H]."""
    size = (*x.shape[:2], shape.kv_heads, shape.head_dim)
    x = x.to(shape.dtype)
    k = F.linear(x, weights[layer + "k_proj.weight"].to(shape.dtype)).view(size)
    v = F.linear(x, weights[layer + "v_proj.weight"].to(shape.dtype)).view(size)
    k = rotated(
        rms_norm(k, weights[layer + "k_norm.weight"], shape.eps), positions, shape.rope_theta
    )
    return k.to(shape.dtype), v


def block_attention(
    x: Tensor, context: Tensor, anchors: Tensor, weights: Weights, layer: str, shape: DrafterShape
) -> Tensor:
    """Attention [B, A, R, heads * D] of normed block rows x [B, A, R, H], context [B, L, H]."""
    batch, blocks, rows = x.shape[:3]
    groups = shape.heads // shape.kv_heads
    flat = x.reshape(batch, blocks * rows, -1)
    places = (anchors[..., None] + torch.arange(rows, device=x.device)).flatten(1)
    seen = torch.arange(context.shape[1], device=x.device)
    k_old, v_old = keys_values(context, seen.expand(batch, -1), weights, layer, shape)
    k_new, v_new = keys_values(flat, places, weights, layer, shape)
    q = F.linear(flat.to(shape.dtype), weights[layer + "q_proj.weight"].to(shape.dtype))
    q = q.view(batch, blocks * rows, shape.heads, shape.head_dim)
    q = rotated(rms_norm(q, weights[layer + "q_norm.weight"], shape.eps), places, shape.rope_theta)
    q = (q * shape.head_dim**-0.5).to(shape.dtype)
    q = q.view(batch, blocks, rows, shape.kv_heads, groups, shape.head_dim)
    # [B, kv, A, R, G, keys]: one batched product a kv head over all rows of all blocks
    old = torch.einsum("barkgd,blkd->bkargl", q, k_old).float()
    hidden = seen >= anchors[:, None, :, None, None, None]
    old = old.masked_fill(hidden, float("-inf"))
    k_new = k_new.view(batch, blocks, rows, shape.kv_heads, -1)
    v_new = v_new.view(batch, blocks, rows, shape.kv_heads, -1)
    new = torch.einsum("barkgd,baskd->bkargs", q, k_new).float()
    share = torch.cat([old, new], -1).softmax(-1).to(shape.dtype)
    share_old, share_new = share.split([context.shape[1], rows], -1)
    mixed = torch.einsum("bkargl,blkd->barkgd", share_old, v_old)
    mixed = mixed + torch.einsum("bkargs,baskd->barkgd", share_new, v_new)
    return mixed.reshape(batch, blocks, rows, -1)


def draft_hidden(
    taps: Tensor,
    tokens: Tensor,
    anchors: Tensor,
    embed: Tensor,
    weights: Weights,
    shape: DrafterShape,
) -> Tensor:
    """Normed rows 1.. of every block [B, A, block - 1, H].

    taps [B, L, taps * H], tokens [B, L], anchors [B, A], embed [vocab, H].
    """
    cast = lambda name: weights[name].to(shape.dtype)  # noqa: E731
    context = F.linear(taps.to(shape.dtype), cast("fc.weight"))
    context = rms_norm(context, weights["hidden_norm.weight"], shape.eps)
    first = embed[tokens.gather(1, anchors)][:, :, None]
    masks = embed[shape.mask_id].expand(*anchors.shape, shape.block_size - 1, -1)
    x = torch.cat([first, masks], 2).float()
    for i in range(shape.layers):
        layer = f"layers.{i}."
        inner = rms_norm(x, weights[layer + "input_layernorm.weight"], shape.eps)
        mixed = block_attention(inner, context, anchors, weights, layer + "self_attn.", shape)
        x = x + F.linear(mixed, cast(layer + "self_attn.o_proj.weight"))
        inner = rms_norm(x, weights[layer + "post_attention_layernorm.weight"], shape.eps)
        inner = inner.to(shape.dtype)
        gate = F.linear(inner, cast(layer + "mlp.gate_proj.weight")).float()
        up = F.linear(inner, cast(layer + "mlp.up_proj.weight"))
        inner = (F.silu(gate) * up).to(shape.dtype)
        x = x + F.linear(inner, cast(layer + "mlp.down_proj.weight"))
    return rms_norm(x[:, :, 1:], weights["norm.weight"], shape.eps)


def draft_logits(hidden: Tensor, head: Tensor, shape: DrafterShape) -> Tensor:
    """fp32 logits of draft rows by the target's head, the mask token excluded."""
    logits = F.linear(hidden.to(shape.dtype), head.to(shape.dtype)).float()
    is_mask = torch.arange(head.shape[0], device=head.device) == shape.mask_id
    return logits.masked_fill(is_mask, float("-inf"))


def drafter_config(shape: DrafterShape) -> dict[str, object]:
    """config.json in z-lab's format."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.eps,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "block_size": shape.block_size,
        "num_target_layers": shape.target_layers,
        "layer_types": ["full_attention"] * shape.layers,
        "use_sliding_window": False,
        "dflash_config": {
            "mask_token_id": shape.mask_id,
            "target_layer_ids": list(shape.taps),
        },
    }


def save_drafter(weights: Weights, shape: DrafterShape, folder: Path) -> None:
    """model.safetensors in bf16 and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: w.detach().to("cpu", torch.bfloat16).contiguous() for n, w in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(drafter_config(shape), indent=1) + "\n")


def saved_shape(folder: Path, **changes: object) -> DrafterShape:
    """The sizes of a saved drafter, as far as they differ between ours."""
    config = json.loads((folder / "config.json").read_text())
    sizes = {"layers": config["num_hidden_layers"], "mlp_size": config["intermediate_size"]}
    return DrafterShape(**sizes, **changes)


def load_drafter(folder: Path, device: torch.device) -> Weights:
    """The saved weights as fp32."""
    tensors = load_file(folder / "model.safetensors")
    return {name: w.to(device, torch.float32) for name, w in tensors.items()}
