# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The drafter as captured rounds run it: dflash.py in the launches of kernels/.

Counts are read on the device and every launch is the same in every round. One injection takes up to
MAX_ROWS tap rows, so whoever takes plain steps in between injects before more than that wait.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Block
from hybridspec.kernels import attention, head, product, stream
from hybridspec.kernels.reference.attention import PAGE
from hybridspec.kernels.reference.stream import Stream
from hybridspec.kernels.taps import keep_taps, pass_taps
from hybridspec.models.dflash import Drafter, DraftLayer, DraftParts
from hybridspec.models.draft_config import SLIDING, DraftConfig
from hybridspec.models.fused_layers import Destination


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedDraftState:
    """The drafter's memory of one request; all tensors are written in place."""

    keys: Tensor
    """[layers, pages, HKV, PAGE, D]: context up to `injected`, the last block's rows after it"""
    values: Tensor
    injected: Tensor
    """[] int32: positions whose context went into the cache"""
    ring: Tensor
    """[2 MAX_ROWS, taps D]: tap rows of committed positions from `injected` on"""
    waiting: Tensor
    """[] int32: rows of the ring that wait for injection"""

    def reset(self) -> None:
        """Forget the context, in place: recorded rounds go on with it."""
        for tensor in (self.keys, self.values, self.injected, self.waiting):
            tensor.zero_()


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedDraftLayer:
    """One layer of the drafter, pre-norm."""

    input_norm: Tensor
    in_proj: Tensor
    """[(H + 2 HKV) D, hidden]: queries, keys, values"""
    q_norm: Tensor
    k_norm: Tensor
    o_proj: Tensor
    post_norm: Tensor
    gate_up: Tensor
    """[2I, hidden], gate rows first"""
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedDrafter:
    """DFlash with the embedding and head of its target."""

    config: DraftConfig
    fc: Tensor
    """[hidden, taps D]"""
    hidden_norm: Tensor
    context: Tensor
    """[layers 2 HKV D, hidden]: keys and values of every layer"""
    k_norms: Tensor
    """[layers, D]"""
    layers: tuple[FusedDraftLayer, ...]
    norm: Tensor
    embedding: Tensor
    head: Tensor
    rotary: Tensor
    tokens: Tensor
    """[MAX_ROWS] int64: the anchor, then masks"""
    rows: Tensor
    """[] int32: block_size"""
    stream: Stream

    @classmethod
    def of(cls, drafter: Drafter, *, embedding: Tensor, head: Tensor) -> "FusedDrafter":
        """The same weights beside a fused target's embedding and head, in their dtype."""
        to = Destination(head.device, head.dtype)
        parts = DraftParts(
            fc=to(drafter.fc),
            hidden_norm=drafter.hidden_norm.to(to.device),
            layers=tuple(fuse_draft(layer, to) for layer in drafter.layers),
            norm=drafter.norm.to(to.device),
            rotary=drafter.rotary.to(to.device),
        )
        return cls.assembled(drafter.config, parts, embedding=embedding, head=head)

    @classmethod
    def assembled(
        cls,
        config: DraftConfig,
        parts: DraftParts[FusedDraftLayer],
        *,
        embedding: Tensor,
        head: Tensor,
    ) -> "FusedDrafter":
        """From what was read and packed already."""
        dtype, device = head.dtype, head.device
        queries = config.num_attention_heads * config.head_dim
        return cls(
            config=config,
            fc=parts.fc,
            hidden_norm=parts.hidden_norm,
            context=torch.cat([layer.in_proj[queries:] for layer in parts.layers]),
            k_norms=torch.stack([layer.k_norm for layer in parts.layers]),
            layers=parts.layers,
            norm=parts.norm,
            embedding=embedding,
            head=head,
            rotary=parts.rotary,
            tokens=torch.full((MAX_ROWS,), config.mask_token_id, device=device),
            rows=torch.tensor(config.block_size, dtype=torch.int32, device=device),
            stream=Stream.empty(config.hidden_size, dtype=dtype, device=device),
        )

    def empty_state(self, positions: int) -> FusedDraftState:
        """A state that knows no context, with room for `positions` and one block beyond."""
        config, device = self.config, self.fc.device
        pages = (positions + MAX_ROWS + PAGE - 1) // PAGE
        shape = (
            config.num_hidden_layers,
            pages,
            config.num_key_value_heads,
            PAGE,
            config.head_dim,
        )

        def count() -> Tensor:
            return torch.zeros((), dtype=torch.int32, device=device)

        keys = torch.zeros(shape, dtype=self.fc.dtype, device=device)
        ring = torch.zeros(2 * MAX_ROWS, self.fc.shape[1], dtype=self.fc.dtype, device=device)
        return FusedDraftState(
            keys=keys, values=keys.clone(), injected=count(), ring=ring, waiting=count()
        )

    def take(self, taps: Tensor, state: FusedDraftState, rows: Tensor | None = None) -> None:
        """Keep the first `rows` [] int32 tap rows of [MAX_ROWS, taps D].

        None: all of [N, taps D], those of a prompt; they are injected at once, but for those that
        no later block can see.
        """
        if rows is not None:
            keep_taps(taps, rows, state.ring, state.waiting)
            return
        reach = self.config.reach
        unseen = 0 if reach is None else max(0, len(taps) - reach)
        state.injected.add_(unseen)  # nothing waits between the pieces of a prompt
        for block in taps[unseen:].split(MAX_ROWS):
            padded = F.pad(block, (0, 0, 0, MAX_ROWS - len(block)))
            count = torch.tensor(len(block), dtype=torch.int32, device=taps.device)
            keep_taps(padded, count, state.ring, state.waiting)
            self.inject(state)

    def inject(self, state: FusedDraftState) -> None:
        """Turn the waiting tap rows, up to MAX_ROWS, into context of every layer."""
        config, eps = self.config, self.config.rms_norm_eps
        self.stream.residual.zero_()
        product.project_onto(
            state.ring[:MAX_ROWS], self.fc, state.waiting, self.stream, self.hidden_norm
        )
        projected = product.project(self.stream, self.context, state.waiting, eps)
        attention.write_context(
            projected.view(MAX_ROWS, config.num_hidden_layers, -1),
            self.k_norms,
            eps,
            self.rotary,
            state.keys,
            state.values,
            state.injected,
            state.waiting,
        )
        pass_taps(state.waiting, state.injected)

    def propose(self, anchor: Tensor, state: FusedDraftState) -> Block:
        """The anchor [] int64, which stands at position `injected`, and the guesses after it."""
        self.inject(state)
        config, rows, own = self.config, self.rows, self.stream
        self.tokens[0].copy_(anchor)
        stream.enter(self.tokens, rows, self.embedding, self.layers[0].input_norm, own)
        norms = [layer.input_norm for layer in self.layers[1:]] + [self.norm]
        for number, (layer, kind) in enumerate(zip(self.layers, config.layer_types, strict=True)):
            self._layer(layer, number, kind, norms[number], state)
        guesses, log_odds = head.draft_head_scaled(
            own.scaled, own.squares, self.head, rows, config.mask_token_id, config.rms_norm_eps
        )
        guesses[0].copy_(anchor)
        return Block(tokens=guesses[: config.block_size], log_odds=log_odds[1 : config.block_size])

    def _layer(
        self,
        layer: FusedDraftLayer,
        number: int,
        kind: str,
        following: Tensor,
        state: FusedDraftState,
    ) -> None:
        config, rows, own, eps = self.config, self.rows, self.stream, self.config.rms_norm_eps
        seen = attention.attend_block(
            product.project(own, layer.in_proj, rows, eps),
            layer.q_norm,
            layer.k_norm,
            eps,
            self.rotary,
            state.keys[number],
            state.values[number],
            state.injected,
            rows,
            window=config.sliding_window if kind == SLIDING else None,
            is_causal=config.causal(kind),
        )
        product.project_onto(seen, layer.o_proj, rows, own, layer.post_norm)
        inner = product.project_gated(own, layer.gate_up, rows, eps)
        product.project_onto(inner, layer.down, rows, own, following)


def fuse_draft(layer: DraftLayer, to: Destination) -> FusedDraftLayer:
    """A layer's weights packed, on their device."""
    return FusedDraftLayer(
        input_norm=layer.input_norm.to(to.device),
        in_proj=to(torch.cat((layer.q_proj, layer.kv_proj))),
        q_norm=to(layer.q_norm),
        k_norm=to(layer.k_norm),
        o_proj=to(layer.o_proj),
        post_norm=layer.post_norm.to(to.device),
        gate_up=to(torch.cat((layer.gate, layer.up))),
        down=to(layer.down),
    )
