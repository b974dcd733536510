# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""DFlash drafter, version 1: guesses a whole block in one parallel pass.

A row of the block is the anchor's embedding or the mask's; every row sees all committed context and
all rows of the block. The context enters as keys and values made from the target's tapped layers,
never from the drafter's own rows. Row i guesses the token at its own position, anchor + i. What a
drafter computes decides how much is accepted, never what is written.

Format and formulas: the DFlash checkpoints and model code of z-lab (github.com/z-lab/dflash).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Block
from hybridspec.kernels.reference.experts import gated_mlp
from hybridspec.kernels.reference.head import draft_head
from hybridspec.kernels.reference.norm import rms_norm
from hybridspec.kernels.reference.rotary import rotary_table, rotate
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.target_config import TargetConfig
from hybridspec.models.weights import Weights

RING_ROWS = 64
"""most tap rows that wait for injection while drafting rests"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLayer:
    """One layer of the drafter, pre-norm."""

    input_norm: Tensor
    q_proj: Tensor
    """[H D, hidden]"""
    kv_proj: Tensor
    """[2 HKV D, hidden]"""
    q_norm: Tensor
    k_norm: Tensor
    o_proj: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(slots=True, kw_only=True)
class DraftState:
    """The drafter's memory of one request: context keys and values, and tap rows that wait."""

    keys: Tensor
    """[layers, HKV, positions, D]; context up to `injected`, the last block's rows after it"""
    values: Tensor
    injected: int = 0
    """positions whose context is in the cache"""
    waiting: list[Tensor]
    """tap rows [r, taps D] of committed positions from `injected` on"""

    def waiting_rows(self) -> int:
        """Rows that wait for injection."""
        return sum(len(rows) for rows in self.waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """DFlash with the embedding and head of its target."""

    config: DraftConfig
    fc: Tensor
    """[hidden, taps D]"""
    hidden_norm: Tensor
    layers: tuple[DraftLayer, ...]
    norm: Tensor
    embedding: Tensor
    """[V, hidden], the target's"""
    head: Tensor
    """[V, hidden], the target's"""
    rotary: Tensor
    """[positions, 2, D/2]"""

    def empty_state(self, positions: int) -> DraftState:
        """A state that knows no context, with room for `positions` and one block beyond."""
        config = self.config
        shape = (
            config.num_hidden_layers,
            config.num_key_value_heads,
            positions + MAX_ROWS,
            config.head_dim,
        )
        zeros = torch.zeros(shape, dtype=torch.float32, device=self.fc.device)
        return DraftState(keys=zeros, values=zeros.clone(), waiting=[])

    def take(self, taps: Tensor, state: DraftState) -> None:
        """Keep tap rows [r, taps D] of newly committed positions; a full ring is injected."""
        state.waiting.append(taps)
        if state.waiting_rows() > RING_ROWS - MAX_ROWS:
            self.inject(state)

    def inject(self, state: DraftState) -> None:
        """Turn the waiting tap rows into context keys and values of every layer."""
        if not state.waiting:
            return
        taps = torch.cat(state.waiting)
        state.waiting.clear()
        context = self._normed(F.linear(taps, self.fc), self.hidden_norm)
        start, end = state.injected, state.injected + len(taps)
        for number, layer in enumerate(self.layers):
            self._write(layer, number, context, start, state)
        state.injected = end

    def propose(self, anchor: Tensor, state: DraftState) -> Block:
        """The anchor [] int64, which stands at position `injected`, and the guesses after it."""
        self.inject(state)
        config, start = self.config, state.injected
        tokens = torch.full((config.block_size,), config.mask_token_id, device=self.fc.device)
        tokens[0] = anchor
        hidden = self.embedding[tokens]
        for number, layer in enumerate(self.layers):
            hidden = self._layer(layer, number, hidden, start, state)
        drafts, log_odds = draft_head(
            self._normed(hidden[1:], self.norm), self.head, config.mask_token_id
        )
        tokens[1:] = drafts
        return Block(tokens=tokens, log_odds=log_odds)

    def _layer(
        self, layer: DraftLayer, number: int, hidden: Tensor, start: int, state: DraftState
    ) -> Tensor:
        config = self.config
        H, D, B = config.num_attention_heads, config.head_dim, len(hidden)
        x = self._normed(hidden, layer.input_norm)
        q = self._normed(F.linear(x, layer.q_proj).view(-1, H, D), layer.q_norm)
        q = rotate(q, self.rotary[start : start + B]).transpose(0, 1)
        self._write(
            layer, number, x, start, state
        )  # overwritten when these positions are committed
        keys, values = state.keys[number, :, : start + B], state.values[number, :, : start + B]
        seen = F.scaled_dot_product_attention(q[None], keys[None], values[None], enable_gqa=True)[0]
        hidden = hidden + F.linear(seen.transpose(0, 1).reshape(-1, H * D), layer.o_proj)
        x = self._normed(hidden, layer.post_norm)
        return hidden + gated_mlp(x, layer.gate, layer.up, layer.down)

    def _write(
        self, layer: DraftLayer, number: int, x: Tensor, start: int, state: DraftState
    ) -> None:
        HKV, D = self.config.num_key_value_heads, self.config.head_dim
        end = start + len(x)
        k, v = F.linear(x, layer.kv_proj).view(-1, 2, HKV, D).unbind(1)
        k = rotate(self._normed(k, layer.k_norm), self.rotary[start:end])
        state.keys[number, :, start:end] = k.transpose(0, 1)
        state.values[number, :, start:end] = v.transpose(0, 1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)


def load_drafter(
    directory: Path, *, config: DraftConfig, target: TargetConfig, embedding: Tensor, head: Tensor
) -> Drafter:
    """Read a drafter's tensors; raises CheckpointError if they fit neither config nor target."""
    _check_fit(directory, config, target)
    weights = Weights(directory, device=embedding.device)
    D = config.hidden_size
    with weights.complete():
        return Drafter(
            config=config,
            fc=weights.take("fc.weight", D, D * len(config.target_layer_ids)),
            hidden_norm=weights.take("hidden_norm.weight", D),
            layers=tuple(_take_layer(weights, config, i) for i in range(config.num_hidden_layers)),
            norm=weights.take("norm.weight", D),
            embedding=embedding,
            head=head,
            rotary=rotary_table(
                config.head_dim,
                config.rope_theta,
                target.max_position_embeddings + MAX_ROWS,
                embedding.device,
            ),
        )


def _check_fit(directory: Path, config: DraftConfig, target: TargetConfig) -> None:
    for field in ("vocab_size", "hidden_size"):
        ours, theirs = getattr(config, field), getattr(target, field)
        if ours != theirs:
            raise CheckpointError(
                f"drafter {directory} has {field} {ours}, the target {theirs}; "
                "give the drafter that was trained for this target."
            )
    if config.num_target_layers not in (None, len(target.layer_types)):
        raise CheckpointError(
            f"drafter {directory} is for a target of {config.num_target_layers} layers, this one "
            f"has {len(target.layer_types)}; give the drafter that was trained for this target."
        )
    if not 0 <= config.mask_token_id < target.vocab_size:
        raise CheckpointError(
            f"drafter {directory} has mask_token_id {shown(config.mask_token_id)}, outside the "
            f"target's vocabulary of {target.vocab_size}; "
            "give the drafter that was trained for this target."
        )


def _take_layer(weights: Weights, config: DraftConfig, number: int) -> DraftLayer:
    name = f"layers.{number}."
    hidden, inner, D = config.hidden_size, config.intermediate_size, config.head_dim
    H, HKV = config.num_attention_heads, config.num_key_value_heads
    kv = [weights.take(f"{name}self_attn.{p}_proj.weight", HKV * D, hidden) for p in "kv"]
    return DraftLayer(
        input_norm=weights.take(f"{name}input_layernorm.weight", hidden),
        q_proj=weights.take(f"{name}self_attn.q_proj.weight", H * D, hidden),
        kv_proj=torch.cat(kv),
        q_norm=weights.take(f"{name}self_attn.q_norm.weight", D),
        k_norm=weights.take(f"{name}self_attn.k_norm.weight", D),
        o_proj=weights.take(f"{name}self_attn.o_proj.weight", hidden, H * D),
        post_norm=weights.take(f"{name}post_attention_layernorm.weight", hidden),
        gate=weights.take(f"{name}mlp.gate_proj.weight", inner, hidden),
        up=weights.take(f"{name}mlp.up_proj.weight", inner, hidden),
        down=weights.take(f"{name}mlp.down_proj.weight", hidden, inner),
    )
