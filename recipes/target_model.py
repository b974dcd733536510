# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The target (model type qwen3_5_moe_text) as functions of plain tensors.

All experts are computed for every token and masked by the routing weights: at 32 experts of width
32 one dense product is faster than any routing, and the result is the same sum. Parameters are fp32
masters; products run in Shape.dtype. The residual stream stays fp32.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
DeltaRule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(q, k [B,T,H,K], v [B,T,HV,V], g, beta [B,T,HV]) -> (y like v, state [B,HV,K,V] fp32).

q and k come before their normalisation, g is the logarithm of the decay.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the target; the names follow the Transformers config."""

    vocab_size: int = 4096
    hidden_size: int = 256
    is_full: tuple[bool, ...] = (False, False, False, True) * 2
    """Which layers are full attention."""
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rope_theta: float = 10000.0
    key_heads: int = 4
    value_heads: int = 8
    delta_dim: int = 32
    """Of keys and of values, per head."""
    experts: int = 32
    top_k: int = 4
    expert_size: int = 32
    shared_size: int = 128
    context: int = 2048
    eps: float = 1e-6
    dtype: torch.dtype = torch.bfloat16
    """What products run in."""

    @property
    def key_width(self) -> int:
        return self.key_heads * self.delta_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.delta_dim


def init_layer(shape: Shape, is_full: bool, normal: Callable[..., Tensor]) -> Weights:
    """Fresh weights of one layer by checkpoint names, except mlp.experts.down [E, I, H]."""
    hidden, out_std = shape.hidden_size, 0.02 / math.sqrt(2 * len(shape.is_full))
    layer = {
        "input_layernorm.weight": torch.zeros(hidden),
        "post_attention_layernorm.weight": torch.zeros(hidden),
        "mlp.gate.weight": normal(shape.experts, hidden),
        "mlp.experts.gate_up_proj": normal(shape.experts, 2 * shape.expert_size, hidden),
        "mlp.experts.down": normal(shape.experts, shape.expert_size, hidden, std=out_std),
        "mlp.shared_expert.gate_proj.weight": normal(shape.shared_size, hidden),
        "mlp.shared_expert.up_proj.weight": normal(shape.shared_size, hidden),
        "mlp.shared_expert.down_proj.weight": normal(hidden, shape.shared_size, std=out_std),
        "mlp.shared_expert_gate.weight": normal(1, hidden),
    }
    if is_full:
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        return layer | {
            "self_attn.q_proj.weight": normal(2 * width, hidden),
            "self_attn.k_proj.weight": normal(kv_width, hidden),
            "self_attn.v_proj.weight": normal(kv_width, hidden),
            "self_attn.o_proj.weight": normal(hidden, width, std=out_std),
            "self_attn.q_norm.weight": torch.zeros(shape.head_dim),
            "self_attn.k_norm.weight": torch.zeros(shape.head_dim),
        }
    channels = 2 * shape.key_width + shape.value_width
    # decay times log-uniform between about 10 and 1000 tokens at the first step
    step = torch.exp(torch.linspace(math.log(1e-3), math.log(1e-1), shape.value_heads))
    return layer | {
        "linear_attn.in_proj_qkv.weight": normal(channels, hidden),
        "linear_attn.in_proj_z.weight": normal(shape.value_width, hidden),
        "linear_attn.in_proj_b.weight": normal(shape.value_heads, hidden),
        "linear_attn.in_proj_a.weight": normal(shape.value_heads, hidden),
        "linear_attn.conv1d.weight": normal(channels, 1, 4, std=0.3),
        "linear_attn.A_log": torch.zeros(shape.value_heads),
        "linear_attn.dt_bias": step + torch.log(-torch.expm1(-step)),
        "linear_attn.norm.weight": torch.ones(shape.delta_dim),
        "linear_attn.out_proj.weight": normal(hidden, shape.value_width, std=out_std),
    }


def init(shape: Shape, seed: int, device: torch.device) -> tuple[Weights, list[Weights]]:
    """Fresh (top, layers) in fp32; top holds embed_tokens, norm and lm_head."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, std: float = 0.02) -> Tensor:
        return torch.randn(*size, generator=generator) * std

    top = {
        "model.embed_tokens.weight": normal(shape.vocab_size, shape.hidden_size, std=0.2),
        "model.norm.weight": torch.zeros(shape.hidden_size),
        "lm_head.weight": normal(shape.vocab_size, shape.hidden_size),
    }
    layers = [init_layer(shape, is_full, normal) for is_full in shape.is_full]
    move = lambda weights: {k: v.to(device).requires_grad_() for k, v in weights.items()}  # noqa: E731
    return move(top), [move(layer) for layer in layers]


def norm0(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMS norm in fp32."""
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + weight)


def linear(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    """x [.., in] times weight [out, in] in the product dtype."""
    return F.linear(x.to(shape.dtype), weight.to(shape.dtype))


def route(scores: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Weights [N, E], zero where not chosen, and the load-balance loss; scores [N, E]."""
    probs = scores.float().softmax(-1)
    left = probs.detach()
    for _ in range(shape.top_k):
        floor = left.amax(-1, keepdim=True)
        left = torch.where(left >= floor, -1.0, left)
    chosen = (left < 0).float()
    kept = probs * chosen
    balance = shape.experts / shape.top_k * (chosen.mean(0) * probs.mean(0)).sum()
    return kept / kept.sum(-1, keepdim=True), balance


def moe(hidden: Tensor, layer: Weights, shape: Shape) -> tuple[Tensor, Tensor]:
    """Routed and shared experts of hidden [N, H], and the load-balance loss."""
    small = [layer["mlp.gate.weight"], layer["mlp.shared_expert_gate.weight"]]
    padding = hidden.new_zeros(7, hidden.shape[1])  # rows in multiples of 8
    scores = linear(hidden, torch.cat([*small, padding]), shape)
    routing, balance = route(scores[:, : shape.experts], shape)
    open_share = scores[:, shape.experts : shape.experts + 1].float().sigmoid()
    routed_width = 2 * shape.experts * shape.expert_size
    inner = linear(
        hidden,
        torch.cat(
            [
                layer["mlp.experts.gate_up_proj"].flatten(0, 1),
                layer["mlp.shared_expert.gate_proj.weight"],
                layer["mlp.shared_expert.up_proj.weight"],
            ]
        ),
        shape,
    )
    gate, up = inner[:, :routed_width].view(-1, shape.experts, 2, shape.expert_size).unbind(2)
    routed = (F.silu(gate.float()) * up * routing[..., None]).flatten(1)
    gate, up = inner[:, routed_width:].chunk(2, -1)
    shared = F.silu(gate.float()) * up * open_share
    down = torch.cat(
        [layer["mlp.experts.down"].flatten(0, 1), layer["mlp.shared_expert.down_proj.weight"].T]
    )
    inner = torch.cat([routed.to(shape.dtype), shared.to(shape.dtype)], -1)
    return inner @ down.to(shape.dtype), balance


def mlp_half(x: Tensor, layer: Weights, shape: Shape) -> tuple[Tensor, Tensor]:
    """x + experts(norm(x)) for x [.., H], and the load-balance loss."""
    flat = x.reshape(-1, x.shape[-1])
    hidden = norm0(flat, layer["post_attention_layernorm.weight"], shape.eps)
    out, balance = moe(hidden, layer, shape)
    return (flat + out).view_as(x), balance


def gdn_projections(x: Tensor, layer: Weights, shape: Shape) -> tuple[Tensor, ...]:
    """(qkv before the convolution, z, log-decay g, beta) of x [B, T, H]; g and beta fp32."""
    hidden = norm0(x, layer["input_layernorm.weight"], shape.eps)
    names = ("qkv", "z", "b", "a")
    weight = torch.cat([layer[f"linear_attn.in_proj_{n}.weight"] for n in names])
    sizes = [layer[f"linear_attn.in_proj_{n}.weight"].shape[0] for n in names]
    qkv, z, b, a = linear(hidden, weight, shape).split(sizes, -1)
    rate = F.softplus(a.float() + layer["linear_attn.dt_bias"])
    return qkv, z, -layer["linear_attn.A_log"].exp() * rate, b.float().sigmoid()


def gdn_convolved(qkv: Tensor, layer: Weights, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v per head after convolution and SiLU; qkv [B, T + 3, C], 3 earlier rows in front."""
    taps = layer["linear_attn.conv1d.weight"].flatten(1)  # [C, 4]; tap 3 is the current token's
    length = qkv.shape[1] - 3
    mixed = sum(qkv[:, i : i + length] * taps[:, i] for i in range(4))
    mixed = F.silu(mixed).to(shape.dtype)
    q, k, v = mixed.split([shape.key_width, shape.key_width, shape.value_width], -1)
    size = (*mixed.shape[:2], -1, shape.delta_dim)
    return q.reshape(size), k.reshape(size), v.reshape(size)


def gdn_before(x: Tensor, layer: Weights, shape: Shape) -> tuple[Tensor, ...]:
    """(q, k, v, g, beta, z, last 3 rows of the convolution's input) from an empty state."""
    qkv, z, g, beta = gdn_projections(x, layer, shape)
    qkv = F.pad(qkv, (0, 0, 3, 0))
    return *gdn_convolved(qkv, layer, shape), g, beta, z, qkv[:, -3:]


def gdn_after(
    x: Tensor, y: Tensor, z: Tensor, layer: Weights, shape: Shape
) -> tuple[Tensor, Tensor]:
    """Gated norm, output projection, residual and the expert half; y [B, T, HV, V]."""
    y = y.float()
    y = (
        y
        * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + shape.eps)
        * layer["linear_attn.norm.weight"]
    )
    y = y.flatten(-2) * F.silu(z.float())
    return mlp_half(x + linear(y, layer["linear_attn.out_proj.weight"], shape), layer, shape)


def rotated(x: Tensor, positions: Tensor, shape: Shape) -> Tensor:
    """Rotary embedding on the first rotary_dim of x [B, T, heads, D]; positions [T]."""
    half = shape.rotary_dim // 2
    exponents = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angle = positions.float()[:, None] * shape.rope_theta**-exponents
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    low, high, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], -1)


def attention_before(
    x: Tensor, positions: Tensor, layer: Weights, shape: Shape
) -> tuple[Tensor, ...]:
    """(q, k, v [B, heads, T, D], gate [B, T, heads * D]) of x [B, T, H] at positions [T]."""
    hidden = norm0(x, layer["input_layernorm.weight"], shape.eps)
    size = (*x.shape[:2], -1, shape.head_dim)
    q, gate = (
        linear(hidden, layer["self_attn.q_proj.weight"], shape)
        .view(*x.shape[:2], shape.heads, 2 * shape.head_dim)
        .chunk(2, -1)
    )
    k = linear(hidden, layer["self_attn.k_proj.weight"], shape).view(size)
    v = linear(hidden, layer["self_attn.v_proj.weight"], shape).view(size)
    q = rotated(norm0(q, layer["self_attn.q_norm.weight"], shape.eps), positions, shape)
    k = rotated(norm0(k, layer["self_attn.k_norm.weight"], shape.eps), positions, shape)
    heads_first = [t.to(shape.dtype).transpose(1, 2) for t in (q, k, v)]
    return *heads_first, gate.flatten(-2)


def attention_after(
    x: Tensor, mixed: Tensor, gate: Tensor, layer: Weights, shape: Shape
) -> tuple[Tensor, Tensor]:
    """Output gate, projection, residual and the expert half; mixed [B, heads, T, D]."""
    mixed = mixed.transpose(1, 2).flatten(-2) * gate.float().sigmoid()
    return mlp_half(x + linear(mixed, layer["self_attn.o_proj.weight"], shape), layer, shape)
