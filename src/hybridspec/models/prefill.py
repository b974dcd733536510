# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A prompt through the fused target's weights, a chunk of rows at a time, in library kernels.

Dense products are cuBLAS's, attention is PyTorch's, `prefill_library.py` has the rest. One program
for all modes and policies, and deterministic: no sum depends on the order of atomics. The residual
stream is fp32, as in decoding.

What a reader gets wrong: the chunk rounds elsewhere than 16 rows of decoding do, so exactness
starts from the state that is left here, not before it. The host asks for the length once a chunk.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from hybridspec.core.records import Reading
from hybridspec.kernels import head
from hybridspec.kernels.reference.attention import PAGE
from hybridspec.kernels.reference.gdn import GdnState, GdnWeights
from hybridspec.kernels.reference.norm import gated_rms_norm, rms_norm
from hybridspec.kernels.reference.rotary import rotate
from hybridspec.kernels.reference.router import route, route_by_probability
from hybridspec.kernels.reference.stream import write
from hybridspec.models.fused_layers import FusedMlp, FusedMoe
from hybridspec.models.prefill_library import LIBRARY, Library
from hybridspec.models.state import TargetState
from hybridspec.models.target import PREFILL_CHUNK, AttentionMixer, GdnMixer

if TYPE_CHECKING:
    from hybridspec.models.fused import FusedTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """What is the same in every layer while a chunk is read."""

    target: "FusedTarget"
    state: TargetState
    start: int
    """position of the first row"""
    library: Library

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and of what products read."""
        return self.target.head.dtype

    def normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Norm of rows [N, D] float32, as float32."""
        return rms_norm(hidden, weight, self.target.config.rms_norm_eps)


def read_prompt(
    target: "FusedTarget",
    tokens: Tensor,
    state: TargetState,
    *,
    chunk: int = PREFILL_CHUNK,
    library: Library = LIBRARY,
) -> Reading:
    """Read tokens [N] int64, N >= 1, that are certain; the state moves past them.

    The Reading has the taps of all rows, but token and gap of the last; whoever wants memory
    bounded hands over `chunk` tokens at a time.
    """
    assert len(tokens), "a prompt has a token"
    taps, hidden = list[Tensor](), tokens.new_zeros(0, dtype=torch.float32)
    start = int(state.length)
    for piece in tokens.split(chunk):
        own = Chunk(target=target, state=state, start=start, library=library)
        hidden, tapped = _read(piece, own)
        taps.append(tapped)
        start += len(piece)
        state.length.fill_(start)
    one = torch.ones((), dtype=torch.int32, device=tokens.device)
    stream = target.buffers.stream
    write(stream, hidden[-1:], target.norm)
    found, gaps = head.read_head_scaled(
        stream.scaled, stream.squares, target.head, one, target.config.rms_norm_eps
    )
    return Reading(tokens=found[:1], gaps=gaps[:1], taps=torch.cat(taps))


def _read(tokens: Tensor, chunk: Chunk) -> tuple[Tensor, Tensor]:
    """The residual stream [N, D] float32 behind all layers, and the tap rows [N, taps D]."""
    target = chunk.target
    hidden, D = target.embedding[tokens].float(), target.config.hidden_size
    taps = torch.empty(len(tokens), D * len(target.taps), dtype=chunk.dtype, device=tokens.device)
    for number, layer in enumerate(target.layers):
        x = chunk.normed(hidden, layer.input_norm).to(chunk.dtype)
        mix = _gdn if isinstance(layer.mixer, GdnMixer) else _attention
        hidden = hidden + mix(layer.mixer, x, chunk)  # pyright: ignore[reportArgumentType]
        x = chunk.normed(hidden, layer.post_norm)
        if isinstance(layer.mlp, FusedMoe):
            hidden = hidden + _moe(number, layer.mlp, x, chunk)
        else:
            hidden = hidden + _mlp(layer.mlp, x.to(chunk.dtype))
        if number in target.taps:
            place = target.taps.index(number)
            taps[:, place * D : (place + 1) * D] = hidden
    return hidden, taps


def _gdn(mixer: GdnMixer, x: Tensor, chunk: Chunk) -> Tensor:
    config, state = chunk.target.config, chunk.state.gdn(mixer.index)
    HV, V, C = config.linear_num_value_heads, config.linear_value_head_dim, config.conv_width
    y = F.linear(x, mixer.in_proj)[:, : C + HV * V + 2 * HV]
    qkv, z, b, a = y.split((C, HV * V, HV, HV), dim=1)
    seen = delta_rows(qkv, a, b, mixer.weights, state, chunk.library).float()
    gated = gated_rms_norm(seen, z.reshape(-1, HV, V).float(), mixer.norm, config.rms_norm_eps)
    return F.linear(gated.reshape(-1, HV * V).to(chunk.dtype), mixer.out_proj)


def delta_rows(
    qkv: Tensor, a: Tensor, b: Tensor, weights: GdnWeights, state: GdnState, library: Library
) -> Tensor:
    """Contract of kernels.reference.gdn.prefill; sums and gates in float32, N of any size."""
    HV, K, V = state.recurrent.shape
    mixed, before = library.convolve(qkv, state.conv, weights.conv), len(state.conv)
    state.conv.copy_(torch.cat((state.conv, qkv[-before:]))[-before:])
    H = (mixed.shape[1] - HV * V) // (2 * K)
    q, k, v = mixed.split((H * K, H * K, HV * V), dim=1)
    q, k, v = q.reshape(-1, H, K), k.reshape(-1, H, K), v.reshape(-1, HV, V)
    log_decay = -weights.decay_rate * F.softplus(a.float() + weights.dt_bias)
    y, memory = library.delta(q, k, v, log_decay, b.float().sigmoid(), state.recurrent)
    state.recurrent.copy_(memory)
    return y


def _attention(mixer: AttentionMixer, x: Tensor, chunk: Chunk) -> Tensor:
    target, N = chunk.target, len(x)
    config, dtype = target.config, chunk.dtype
    H, HKV, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    angles = target.rotary[chunk.start : chunk.start + N]
    y = F.linear(x, mixer.in_proj)[:, : 2 * (H + HKV) * D]
    heads, k, v = y.split((2 * H * D, HKV * D, HKV * D), dim=1)
    q, gate = heads.view(N, H, 2 * D).split(D, dim=-1)
    q = rotate(chunk.normed(q.float(), mixer.q_norm), angles).to(dtype)
    k = rotate(chunk.normed(k.reshape(N, HKV, D).float(), mixer.k_norm), angles).to(dtype)
    keys, values = chunk.state.keys[mixer.index], chunk.state.values[mixer.index]
    positions = torch.arange(chunk.start, chunk.start + N, device=x.device)
    keys[positions // PAGE, :, positions % PAGE] = k
    values[positions // PAGE, :, positions % PAGE] = v.reshape(N, HKV, D)
    seen = attend(q, keys, values, chunk.start) * gate.float().sigmoid()
    return F.linear(seen.reshape(N, H * D).to(dtype), mixer.out_proj)


def attend(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """Contract of kernels.reference.attention.attend, but for `start`, which the host knows.

    Copies the pages in use side by side: as many bytes as they have, gone with the layer.
    """
    end = start + len(q)
    used = (end + PAGE - 1) // PAGE
    k, v = (x[:used].transpose(0, 1).flatten(1, 2)[None, :, :end] for x in (keys, values))
    seen = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k,
        v,
        attn_mask=causal_lower_right(len(q), end),  # pyright: ignore[reportArgumentType]
        enable_gqa=True,
    )
    return seen[0].transpose(0, 1)


def _moe(number: int, moe: FusedMoe, x: Tensor, chunk: Chunk) -> Tensor:
    """Routed and shared experts of x [N, D] float32 -> [N, D] float32."""
    config, steered = chunk.target.config, chunk.target.steered
    E, k = config.num_experts, config.num_experts_per_tok
    logits = F.linear(x, moe.router.float())
    allowed, share, x = logits[:, :E], logits[:, E:].sigmoid(), x.to(chunk.dtype)
    if steered is not None:
        table = steered[number, chunk.start : chunk.start + len(x)].long()
        ids = torch.sort(allowed.gather(1, table), dim=1, descending=True, stable=True)[1]
        ids = table.gather(1, ids)
        weights = allowed.softmax(-1).gather(1, ids)
        weights = weights / weights.sum(-1, keepdim=True) if config.norm_topk_prob else weights
    else:
        ids, weights = (route if config.norm_topk_prob else route_by_probability)(allowed, k)
    routed = experts(x, ids, weights, moe.gate_up[:E], moe.down[:E], chunk.library)
    for gate_up, down in zip(moe.gate_up[E:], moe.down[E:], strict=True):
        gate, up = F.linear(x, gate_up).float().chunk(2, dim=1)
        routed = routed + F.linear((F.silu(gate) * up * share).to(x.dtype), down)
    return routed


def experts(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, library: Library
) -> Tensor:
    """Weighted sum of the chosen experts' outputs, rows sorted by expert.

    x       [N, D]        float
    ids     [N, k]        int64
    weights [N, k]        float32
    gate_up [E, 2I, D]    float, gate rows first
    down    [E, D, I]     float
    returns [N, D]        float32; a row's experts are added in the order of ids
    """
    N, k = ids.shape
    chosen, order = ids.flatten().sort(stable=True)
    numbers = torch.arange(len(gate_up), device=ids.device)
    ends = torch.searchsorted(chosen, numbers, right=True).to(torch.int32)
    gate, up = library.grouped(x[order // k], gate_up, ends).float().chunk(2, dim=1)
    inner = F.silu(gate) * up * weights.flatten()[order, None]
    out = library.grouped(inner.to(x.dtype), down, ends)
    places = torch.empty_like(order)
    places[order] = torch.arange(N * k, device=ids.device)
    return out[places].view(N, k, -1).sum(1, dtype=torch.float32)


def _mlp(mlp: FusedMlp, x: Tensor) -> Tensor:
    gate, up = F.linear(x, mlp.gate_up).float().chunk(2, dim=1)
    return F.linear((F.silu(gate) * up).to(x.dtype), mlp.down)
