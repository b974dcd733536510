# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Qwen3.5 / 3.6 mixture of experts with Gated DeltaNet layers: the text model.

Read top to bottom: parts of a layer, how a row passes through them, the target, and how it is
loaded. Every layer of this family has a router, so the way to the first router ends in layer 0.
Layer norms are zero-centred (1 + weight), the norm inside a GDN layer is not; the 1 is added here,
once, when the tensors are taken.

Formulas and tensor names: modeling_qwen3_5_moe.py of Transformers 5.17.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.core.errors import CheckpointError
from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Reading, Routed
from hybridspec.kernels.reference import gdn
from hybridspec.kernels.reference.activation import sigmoid, silu
from hybridspec.kernels.reference.attention import attend, write_pages
from hybridspec.kernels.reference.experts import experts
from hybridspec.kernels.reference.gdn import GdnWeights
from hybridspec.kernels.reference.head import read_head
from hybridspec.kernels.reference.norm import gated_rms_norm, rms_norm
from hybridspec.kernels.reference.rotary import rotary_table, rotate
from hybridspec.kernels.reference.router import drop_rows, route
from hybridspec.models.operations import Operations
from hybridspec.models.state import TargetState
from hybridspec.models.target_config import TargetConfig
from hybridspec.models.weights import Weights

PREFILL_ROWS = 64
"""rows of a prompt that are read at a time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnMixer:
    """A Gated DeltaNet layer's mixer."""

    index: int
    """among GDN layers"""
    in_proj: Tensor
    """[C + HV V + 2 HV, D]: queries, keys and values; z; b; a"""
    weights: GdnWeights
    norm: Tensor
    """[V]"""
    out_proj: Tensor
    """[D, HV V]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMixer:
    """A gated attention layer's mixer."""

    index: int
    """among attention layers"""
    in_proj: Tensor
    """[2 H D + 2 HKV D, hidden]: of each head query then gate; keys; values"""
    q_norm: Tensor
    k_norm: Tensor
    out_proj: Tensor
    """[hidden, H D]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A router, its experts, and the shared expert."""

    router: Tensor
    """[E, D]"""
    gate_up: Tensor
    """[E, 2I, D], gate rows first"""
    down: Tensor
    """[D, E, I]"""
    shared_in: Tensor
    """[2S + 1, D]: gate, up, and the shared expert's own gate"""
    shared_down: Tensor
    """[D, S]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer."""

    input_norm: Tensor
    mixer: GdnMixer | AttentionMixer
    post_norm: Tensor
    moe: Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model whose output decoding reproduces. Weights may be shared by several Targets."""

    config: TargetConfig
    operations: Operations
    taps: tuple[int, ...]
    """layers whose outputs a drafter reads"""
    embedding: Tensor
    """[V, D]"""
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    """[V, D]"""
    rotary: Tensor
    """[positions, 2, R/2]"""

    def read_prompt(self, tokens: Tensor, state: TargetState) -> Reading:
        """Read up to PREFILL_ROWS tokens that are certain; the state moves past them.

        One program for all modes and policies, so that what follows starts from the same state.
        tokens [N] int64; the Reading has the taps of all rows, but tokens and gaps of the last.
        """
        hidden, delta = self.embedding[tokens], _gdn_prefill(state)
        rows = torch.tensor(len(tokens), dtype=torch.int32, device=tokens.device)
        tapped: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            residual, normed = self._mix(layer, hidden, rows, state, delta)
            ids, weights = self._route(layer, normed)
            hidden = residual + _moe(layer.moe, normed, ids, weights, experts)
            if number in self.taps:
                tapped[number] = hidden
        state.length.add_(rows)
        return self._read_out(hidden[-1:], tapped)

    def read_to_router(self, tokens: Tensor, rows: Tensor, state: TargetState) -> Routed:
        """Read the first `rows` tokens of a block up to the first router; no expert runs.

        tokens [B] int64; rows [] int32, 1..B
        """
        n = int(rows)
        width = self.operations.width(n)
        hidden = self.embedding[F.pad(tokens[:width], (0, max(0, width - len(tokens))))]
        layer = self.layers[0]
        delta = self._gdn_verify(state, rows)
        residual, normed = self._mix(layer, _only(hidden, n), rows, state, delta)
        ids, weights = self._route(layer, normed)
        ids = drop_rows(ids, rows)
        return Routed(residual=residual, normed=normed, expert_ids=ids, expert_weights=weights)

    def read_on(self, routed: Routed, rows: Tensor, state: TargetState) -> Reading:
        """Read the first `rows` of the routed rows to the end; the others fetch no expert.

        rows [] int32, 1..rows that were routed
        """
        n = int(rows)
        width = self.operations.width(n)
        delta = self._gdn_verify(state, rows)
        residual, normed = _only(routed.residual[:width], n), _only(routed.normed[:width], n)
        ids, weights = drop_rows(routed.expert_ids[:width], rows), routed.expert_weights[:width]
        tapped: dict[int, Tensor] = {}
        for number, layer in enumerate(self.layers):
            if number > 0:
                residual, normed = self._mix(layer, residual, rows, state, delta)
                ids, weights = self._route(layer, normed)
                ids = drop_rows(ids, rows)
            residual = residual + _moe(layer.moe, normed, ids, weights, self.operations.experts)
            if number in self.taps:
                tapped[number] = residual
        return self._read_out(residual, tapped)

    def _read_out(self, hidden: Tensor, tapped: dict[int, Tensor]) -> Reading:
        tokens, gaps = read_head(self._normed(hidden, self.norm), self.head)
        taps = [tapped[number] for number in self.taps]  # in the drafter's order
        taps = torch.cat(taps, dim=1) if taps else hidden[:, :0]
        return Reading(tokens=tokens, gaps=gaps, taps=taps)

    def _mix(
        self, layer: Layer, hidden: Tensor, rows: Tensor, state: TargetState, delta: "DeltaRule"
    ) -> tuple[Tensor, Tensor]:
        """The residual stream after a layer's mixer, and the norm of it that the router reads."""
        x = self._normed(hidden, layer.input_norm)
        if isinstance(layer.mixer, GdnMixer):
            mixed = self._gdn(layer.mixer, x, delta)
        else:
            mixed = self._attention(layer.mixer, x, rows, state)
        residual = hidden + mixed
        return residual, self._normed(residual, layer.post_norm)

    def _gdn(self, mixer: GdnMixer, x: Tensor, delta: "DeltaRule") -> Tensor:
        config = self.config
        HV, V = config.linear_num_value_heads, config.linear_value_head_dim
        qkv, z, b, a = F.linear(x, mixer.in_proj).split((config.conv_width, HV * V, HV, HV), dim=1)
        y = delta(mixer, qkv, a, b)
        gated = gated_rms_norm(y, z.reshape(-1, HV, V), mixer.norm, config.rms_norm_eps)
        return F.linear(gated.reshape(-1, HV * V), mixer.out_proj)

    def _attention(
        self, mixer: AttentionMixer, x: Tensor, rows: Tensor, state: TargetState
    ) -> Tensor:
        config = self.config
        H, HKV, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        start = int(state.length)
        angles = self.rotary[start : start + len(x)]
        heads, k, v = F.linear(x, mixer.in_proj).split((2 * H * D, HKV * D, HKV * D), dim=1)
        q, gate = heads.view(-1, H, 2 * D).split(D, dim=-1)
        q = rotate(self._normed(q, mixer.q_norm), angles)
        k = rotate(self._normed(k.reshape(-1, HKV, D), mixer.k_norm), angles)
        keys, values = state.keys[mixer.index], state.values[mixer.index]
        write_pages(keys, k, state.length, rows)
        write_pages(values, v.reshape(-1, HKV, D), state.length, rows)
        seen = attend(q, keys, values, state.length) * sigmoid(gate)
        return F.linear(seen.reshape(-1, H * D), mixer.out_proj)

    def _route(self, layer: Layer, normed: Tensor) -> tuple[Tensor, Tensor]:
        return route(F.linear(normed, layer.moe.router), self.config.num_experts_per_tok)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def _gdn_verify(self, state: TargetState, rows: Tensor) -> "DeltaRule":
        def verify(mixer: GdnMixer, qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
            layer, records = state.gdn(mixer.index), state.gdn_records(mixer.index)
            return self.operations.gdn_verify(qkv, a, b, mixer.weights, layer, records, rows)

        return verify


DeltaRule = Callable[[GdnMixer, Tensor, Tensor, Tensor], Tensor]
"""(mixer, qkv [N, C], a [N, HV], b [N, HV]) -> [N, HV, V]"""
Experts = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""contract of kernels.reference.experts.experts"""


def _gdn_prefill(state: TargetState) -> DeltaRule:
    return lambda mixer, qkv, a, b: gdn.prefill(qkv, a, b, mixer.weights, state.gdn(mixer.index))


def _moe(moe: Moe, x: Tensor, ids: Tensor, weights: Tensor, routed: Experts) -> Tensor:
    """The routed experts and the shared one: x [N, D] -> [N, D]."""
    S = moe.shared_down.shape[1]
    gate, up, share = F.linear(x, moe.shared_in).split((S, S, 1), dim=1)
    shared = F.linear(silu(gate) * up, moe.shared_down)
    return routed(x, ids, weights, moe.gate_up, moe.down) + sigmoid(share) * shared


def _only(x: Tensor, rows: int) -> Tensor:
    """x with zeros in every row from `rows` on."""
    if rows < len(x):
        x = x.clone()
        x[rows:] = 0
    return x


def load_target(
    directory: Path, *, operations: Operations, taps: tuple[int, ...], device: torch.device
) -> Target:
    """Read a checkpoint directory; raises CheckpointError that names the field or tensor."""
    config = TargetConfig.load(directory)
    weights = Weights(directory, device=device, skip=("mtp.", "model.visual."))
    prefix = "model.language_model." if weights.has("model.language_model.") else "model."
    with weights.complete():
        D, V = config.hidden_size, config.vocab_size
        embedding = weights.take(f"{prefix}embed_tokens.weight", V, D)
        return Target(
            config=config,
            operations=operations,
            taps=_checked_taps(taps, config),
            embedding=embedding,
            layers=_take_layers(weights, config, prefix),
            norm=1 + weights.take(f"{prefix}norm.weight", D),
            head=embedding if config.tie_word_embeddings else weights.take("lm_head.weight", V, D),
            rotary=rotary_table(
                config.rotary_dims,
                config.rope_theta,
                config.max_position_embeddings + MAX_ROWS,
                device,
            ),
        )


def _checked_taps(taps: tuple[int, ...], config: TargetConfig) -> tuple[int, ...]:
    layers = len(config.layer_types)
    for tap in taps:
        if tap >= layers:
            raise CheckpointError(
                f"the drafter taps layer {tap}, but the target has layers 0 to {layers - 1}; "
                "give the drafter that was trained for this target."
            )
    return taps


def _take_layers(weights: Weights, config: TargetConfig, prefix: str) -> tuple[Layer, ...]:
    D = config.hidden_size
    layers: list[Layer] = []
    for number, kind in enumerate(config.layer_types):
        index = config.layer_types[:number].count(kind)
        name = f"{prefix}layers.{number}."
        take_mixer = _take_gdn if kind == "linear_attention" else _take_attention
        layers.append(
            Layer(
                input_norm=1 + weights.take(f"{name}input_layernorm.weight", D),
                mixer=take_mixer(weights, config, name, index),
                post_norm=1 + weights.take(f"{name}post_attention_layernorm.weight", D),
                moe=_take_moe(weights, config, f"{name}mlp."),
            )
        )
    return tuple(layers)


def _take_gdn(weights: Weights, config: TargetConfig, layer: str, index: int) -> GdnMixer:
    name = f"{layer}linear_attn."
    D, C, taps = config.hidden_size, config.conv_width, config.linear_conv_kernel_dim
    HV, V = config.linear_num_value_heads, config.linear_value_head_dim
    parts = (("qkv", C), ("z", HV * V), ("b", HV), ("a", HV))
    return GdnMixer(
        index=index,
        in_proj=torch.cat([weights.take(f"{name}in_proj_{p}.weight", n, D) for p, n in parts]),
        weights=GdnWeights(
            conv=weights.take(f"{name}conv1d.weight", C, 1, taps)[:, 0].T.contiguous(),
            decay_rate=weights.take(f"{name}A_log", HV).exp(),
            dt_bias=weights.take(f"{name}dt_bias", HV),
        ),
        norm=weights.take(f"{name}norm.weight", V),
        out_proj=weights.take(f"{name}out_proj.weight", D, HV * V),
    )


def _take_attention(
    weights: Weights, config: TargetConfig, layer: str, index: int
) -> AttentionMixer:
    name = f"{layer}self_attn."
    hidden, D = config.hidden_size, config.head_dim
    H, HKV = config.num_attention_heads, config.num_key_value_heads
    parts = (("q", 2 * H * D), ("k", HKV * D), ("v", HKV * D))
    return AttentionMixer(
        index=index,
        in_proj=torch.cat([weights.take(f"{name}{p}_proj.weight", n, hidden) for p, n in parts]),
        q_norm=1 + weights.take(f"{name}q_norm.weight", D),
        k_norm=1 + weights.take(f"{name}k_norm.weight", D),
        out_proj=weights.take(f"{name}o_proj.weight", hidden, H * D),
    )


def _take_moe(weights: Weights, config: TargetConfig, name: str) -> Moe:
    D, E, inner = config.hidden_size, config.num_experts, config.moe_intermediate_size
    S = config.shared_expert_intermediate_size
    shared = [
        weights.take(f"{name}shared_expert.gate_proj.weight", S, D),
        weights.take(f"{name}shared_expert.up_proj.weight", S, D),
        weights.take(f"{name}shared_expert_gate.weight", 1, D),
    ]
    return Moe(
        router=weights.take(f"{name}gate.weight", E, D),
        gate_up=weights.take(f"{name}experts.gate_up_proj", E, 2 * inner, D),
        down=weights.take(f"{name}experts.down_proj", E, D, inner).transpose(0, 1).contiguous(),
        shared_in=torch.cat(shared),
        shared_down=weights.take(f"{name}shared_expert.down_proj.weight", D, S),
    )
