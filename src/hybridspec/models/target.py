# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The target: Gated DeltaNet and gated attention layers over experts or a plain gated MLP.

Read top to bottom: parts of a layer, how a row passes through them, the target. The families differ
in how their tensors become these parts (`target_layout.py`), not in here. The way to the first
router ends in the first layer that has one and leads through every layer before it. Layer norms are
zero-centred (1 + weight), the norm inside a GDN layer is not; the 1 is added once, when the tensors
are taken.

Formulas: modeling_qwen3_5_moe.py and modeling_qwen3_next.py of Transformers 5.17.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.core.options import Mode
from hybridspec.core.records import Reading, Routed
from hybridspec.kernels.reference import gdn
from hybridspec.kernels.reference.activation import sigmoid, silu
from hybridspec.kernels.reference.attention import attend, write_pages
from hybridspec.kernels.reference.experts import experts, gated_mlp
from hybridspec.kernels.reference.gdn import GdnWeights
from hybridspec.kernels.reference.head import read_head
from hybridspec.kernels.reference.norm import gated_rms_norm, rms_norm
from hybridspec.kernels.reference.rotary import rotate
from hybridspec.kernels.reference.router import drop_rows, route, route_by_probability
from hybridspec.models.operations import Operations, of_mode
from hybridspec.models.state import TargetState
from hybridspec.models.target_config import TargetConfig

PREFILL_ROWS = 64
"""rows of a prompt that are read at a time on a CPU"""
PREFILL_CHUNK = 4096
"""the same on a GPU: what bounds a prompt's memory beyond its keys and values"""


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
class Mlp:
    """What stands in a layer without a router: one expert that every row goes to."""

    gate: Tensor
    """[I, D]"""
    up: Tensor
    """[I, D]"""
    down: Tensor
    """[D, I]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer."""

    input_norm: Tensor
    mixer: GdnMixer | AttentionMixer
    post_norm: Tensor
    mlp: Moe | Mlp


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

    @property
    def first_moe(self) -> tuple[int, Moe]:
        """Number and experts of the first layer that has a router."""
        numbered = enumerate(self.layers)
        return next((i, layer.mlp) for i, layer in numbered if isinstance(layer.mlp, Moe))

    def using(self, mode: Mode) -> "Target":
        """The same weights in another mode."""
        return replace(self, operations=of_mode(mode))

    @property
    def fetched(self) -> None:
        """Nobody counts the experts of a pass."""
        return

    def empty_state(self, positions: int) -> TargetState:
        """A state that has read nothing, with room for `positions` and one block beyond."""
        return TargetState.empty(self.config, positions, self.head.device)

    def read_prompt(self, tokens: Tensor, state: TargetState) -> Reading:
        """Read up to PREFILL_ROWS tokens that are certain; the state moves past them.

        One program for all modes and policies, so that what follows starts from the same state.
        tokens [N] int64; the Reading has the taps of all rows, but tokens and gaps of the last.
        """
        rows = torch.tensor(len(tokens), dtype=torch.int32, device=tokens.device)
        walk = Walk(state=state, rows=rows, delta=_gdn_prefill(state), experts=experts)
        hidden = self._pass(range(len(self.layers)), self.embedding[tokens], walk)
        state.length.add_(rows)
        return self._read_out(hidden[-1:], walk.tapped)

    def read_to_router(self, tokens: Tensor, rows: Tensor, state: TargetState) -> Routed:
        """Read the first `rows` tokens of a block up to the first router; no expert runs.

        tokens [B] int64; rows [] int32, 1..B
        """
        n = int(rows)
        width = self.operations.width(n)
        hidden = self.embedding[F.pad(tokens[:width], (0, max(0, width - len(tokens))))]
        walk, (first, moe) = self._verify(state, rows), self.first_moe
        hidden = self._pass(range(first), _only(hidden, n), walk)
        residual, normed = self._mix(self.layers[first], hidden, walk)
        ids, weights = self._route(moe, normed, rows)
        return Routed(
            residual=residual,
            normed=normed,
            expert_ids=ids,
            expert_weights=weights,
            tapped=walk.tapped,
        )

    def read_on(self, routed: Routed, rows: Tensor, state: TargetState) -> Reading:
        """Read the first `rows` of the routed rows to the end; the others fetch no expert.

        rows [] int32, 1..rows that were routed
        """
        n = int(rows)
        width = self.operations.width(n)
        walk, (first, moe) = self._verify(state, rows), self.first_moe
        walk.tapped.update({number: x[:width] for number, x in routed.tapped.items()})
        residual, normed = _only(routed.residual[:width], n), _only(routed.normed[:width], n)
        ids, weights = drop_rows(routed.expert_ids[:width], rows), routed.expert_weights[:width]
        hidden = residual + _moe(moe, normed, ids, weights, walk.experts)
        self._tap(first, hidden, walk)
        hidden = self._pass(range(first + 1, len(self.layers)), hidden, walk)
        return self._read_out(hidden, walk.tapped)

    def _pass(self, numbers: range, hidden: Tensor, walk: "Walk") -> Tensor:
        """The residual stream after whole layers; the outputs of tapped ones are set aside."""
        for number in numbers:
            layer = self.layers[number]
            residual, normed = self._mix(layer, hidden, walk)
            if isinstance(layer.mlp, Moe):
                ids, weights = self._route(layer.mlp, normed, walk.rows)
                hidden = residual + _moe(layer.mlp, normed, ids, weights, walk.experts)
            else:
                mlp = layer.mlp
                hidden = residual + gated_mlp(normed, mlp.gate, mlp.up, mlp.down)
            self._tap(number, hidden, walk)
        return hidden

    def _tap(self, number: int, hidden: Tensor, walk: "Walk") -> None:
        if number in self.taps:
            walk.tapped[number] = hidden

    def _read_out(self, hidden: Tensor, tapped: dict[int, Tensor]) -> Reading:
        tokens, gaps = read_head(self._normed(hidden, self.norm), self.head)
        taps = [tapped[number] for number in self.taps]  # in the drafter's order
        taps = torch.cat(taps, dim=1) if taps else hidden[:, :0]
        return Reading(tokens=tokens, gaps=gaps, taps=taps)

    def _mix(self, layer: Layer, hidden: Tensor, walk: "Walk") -> tuple[Tensor, Tensor]:
        """The residual stream after a layer's mixer, and the norm of it that the router reads."""
        x = self._normed(hidden, layer.input_norm)
        if isinstance(layer.mixer, GdnMixer):
            mixed = self._gdn(layer.mixer, x, walk.delta)
        else:
            mixed = self._attention(layer.mixer, x, walk.rows, walk.state)
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

    def _route(self, moe: Moe, normed: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        shares_of = route if self.config.norm_topk_prob else route_by_probability
        ids, weights = shares_of(F.linear(normed, moe.router), self.config.num_experts_per_tok)
        return drop_rows(ids, rows), weights

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def _verify(self, state: TargetState, rows: Tensor) -> "Walk":
        """A walk that leaves the state as it is and records what it read."""

        def verify(mixer: GdnMixer, qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
            layer, records = state.gdn(mixer.index), state.gdn_records(mixer.index)
            return self.operations.gdn_verify(qkv, a, b, mixer.weights, layer, records, rows)

        return Walk(state=state, rows=rows, delta=verify, experts=self.operations.experts)


DeltaRule = Callable[[GdnMixer, Tensor, Tensor, Tensor], Tensor]
"""(mixer, qkv [N, C], a [N, HV], b [N, HV]) -> [N, HV, V]"""
Experts = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""contract of kernels.reference.experts.experts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What is the same in every layer while rows are read."""

    state: TargetState
    rows: Tensor
    """[] int32: rows that are read; those after them are padding"""
    delta: DeltaRule
    experts: Experts
    tapped: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """outputs of tapped layers, by number, as they are passed"""


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
