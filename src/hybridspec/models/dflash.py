# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""DFlash drafter, version 1: guesses a whole block in one parallel pass.

A row of the block is the anchor's embedding or the mask's. In a full layer every row sees all
committed context and all rows of the block; in a sliding one the positions within its window up to
its own, itself included, unless the configuration says otherwise. The context enters as keys and
values made from the target's tapped layers, never from the drafter's own rows. Row i guesses the
token at its own position, anchor + i. What a drafter computes decides how much is accepted, never
what is written.

Format and formulas: the DFlash checkpoints and model code of z-lab (github.com/z-lab/dflash).
Drafters of the speculators library are the same network; where their layers slide, they were
trained with a window that ends at the anchor for every row, and run here, as in vLLM, with one that
moves with the row.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Block
from hybridspec.kernels.reference.experts import gated_mlp
from hybridspec.kernels.reference.head import draft_head
from hybridspec.kernels.reference.norm import rms_norm
from hybridspec.kernels.reference.rotary import rotary_table, rotate, yarn_table
from hybridspec.models.draft_config import SLIDING, DraftConfig
from hybridspec.models.reading import TensorReader, Widened, host_of, same
from hybridspec.models.target_config import TargetConfig
from hybridspec.models.weights import Progress, Weights

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


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which positions the rows of a block see in one kind of layer."""

    first: int
    """the first position that any row sees"""
    mask: Tensor | None
    """[rows, positions from `first` to the block's end] bool; None: every row sees all of them"""


@dataclass(slots=True, kw_only=True)
class DraftState:
    """The drafter's memory of one request: context keys and values, and tap rows that wait."""

    keys: Tensor
    """[layers, HKV, rows, D]; context up to `injected`, the last block's rows after it"""
    values: Tensor
    first: int = 0
    """position of the first row; above 0 only where all layers slide"""
    injected: int = 0
    """positions whose context went into the cache"""
    ring: Tensor
    """[RING_ROWS, taps D]: tap rows of committed positions from `injected` on"""
    waiting: int = 0
    """rows of the ring that wait for injection"""

    def reset(self) -> None:
        """Forget the context."""
        self.keys.zero_()
        self.values.zero_()
        self.first = self.injected = self.waiting = 0


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
        """A state that knows no context, with room for `positions` and one block beyond.

        Where all layers slide the room is that of two windows, whatever the number of positions.
        """
        config = self.config
        if config.reach is not None:  # twice, so that rows move once a window and not every round
            positions = min(positions, 2 * config.reach)
        shape = (
            config.num_hidden_layers,
            config.num_key_value_heads,
            positions + MAX_ROWS,
            config.head_dim,
        )
        zeros = torch.zeros(shape, dtype=torch.float32, device=self.fc.device)
        ring = torch.empty(RING_ROWS, self.fc.shape[1], dtype=torch.float32, device=self.fc.device)
        return DraftState(keys=zeros, values=zeros.clone(), ring=ring)

    def take(self, taps: Tensor, state: DraftState, rows: Tensor | None = None) -> None:
        """Keep the tap rows of newly committed positions; a full ring is injected.

        taps [N, taps D]; rows [] int32, 0..N: how many of them were committed; None: all
        """
        committed = taps if rows is None else taps[: int(rows)]
        for part in committed.split(RING_ROWS):
            if state.waiting + len(part) > RING_ROWS:
                self.inject(state)
            state.ring[state.waiting : state.waiting + len(part)] = part
            state.waiting += len(part)
        if state.waiting > RING_ROWS - MAX_ROWS:
            self.inject(state)

    def inject(self, state: DraftState) -> None:
        """Turn the waiting tap rows into context keys and values of every layer."""
        if not state.waiting:
            return
        taps = state.ring[: state.waiting]
        state.waiting = 0
        end = state.injected + len(taps)
        if self.config.reach is not None:  # what no later block can see is not computed
            taps = taps[max(0, len(taps) - self.config.reach) :]
            _make_room(state, end, self.config.reach)
        context = self._normed(F.linear(taps, self.fc), self.hidden_norm)
        for number, layer in enumerate(self.layers):
            self._write(layer, number, context, end - len(taps), state)
        state.injected = end

    def propose(self, anchor: Tensor, state: DraftState) -> Block:
        """The anchor [] int64, which stands at position `injected`, and the guesses after it."""
        self.inject(state)
        config, start = self.config, state.injected
        tokens = torch.full((config.block_size,), config.mask_token_id, device=self.fc.device)
        tokens[0] = anchor
        hidden = self.embedding[tokens]
        views = {kind: self._view(kind, start) for kind in set(config.layer_types)}
        for number, (layer, kind) in enumerate(zip(self.layers, config.layer_types, strict=True)):
            hidden = self._layer(layer, number, hidden, start, views[kind], state)
        drafts, log_odds = draft_head(
            self._normed(hidden[1:], self.norm), self.head, config.mask_token_id
        )
        tokens[1:] = drafts
        return Block(tokens=tokens, log_odds=log_odds)

    def _view(self, kind: str, start: int) -> View:
        """What the rows of a block that starts at `start` see in layers of this kind."""
        window = self.config.sliding_window if kind == SLIDING else None
        return block_view(
            start,
            self.config.block_size,
            window=window,
            is_causal=self.config.causal(kind),
            device=self.fc.device,
        )

    def _layer(
        self,
        layer: DraftLayer,
        number: int,
        hidden: Tensor,
        start: int,
        view: View,
        state: DraftState,
    ) -> Tensor:
        config = self.config
        H, D, B = config.num_attention_heads, config.head_dim, len(hidden)
        x = self._normed(hidden, layer.input_norm)
        q = self._normed(F.linear(x, layer.q_proj).view(-1, H, D), layer.q_norm)
        q = rotate(q, self.rotary[start : start + B]).transpose(0, 1)
        # overwritten when these positions are committed
        self._write(layer, number, x, start, state)
        rows = slice(view.first - state.first, start + B - state.first)
        keys, values = state.keys[number, :, rows], state.values[number, :, rows]
        seen = F.scaled_dot_product_attention(
            q[None], keys[None], values[None], attn_mask=view.mask, enable_gqa=True
        )[0]
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
        rows = slice(start - state.first, end - state.first)
        state.keys[number, :, rows] = k.transpose(0, 1)
        state.values[number, :, rows] = v.transpose(0, 1)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)


def block_view(
    start: int, rows: int, *, window: int | None, is_causal: bool, device: torch.device
) -> View:
    """What `rows` of a block see whose first stands at position `start`.

    A key k is seen from q iff |q - k| < window, and k <= q where the layer is causal. As z-lab's
    `_attention_mask` (github.com/z-lab/dflash, `dflash/model.py`).
    """
    first = 0 if window is None else max(0, start - window + 1)
    if not is_causal and (window is None or start + rows <= window):
        return View(first=first, mask=None)
    q = torch.arange(start, start + rows, device=device)[:, None]
    distance = q - torch.arange(first, start + rows, device=device)
    mask = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        mask &= distance.abs() < window
    return View(first=first, mask=mask)


def _make_room(state: DraftState, end: int, reach: int) -> None:
    """Move the rows that a block at `end` can see to the front, if the next rows do not fit."""
    if end + MAX_ROWS - state.first <= state.keys.shape[2]:
        return
    first = max(0, end - reach)
    kept = slice(first - state.first, max(first, state.injected) - state.first)
    for rows in (state.keys, state.values):
        rows[:, :, : kept.stop - kept.start] = rows[:, :, kept]  # more than `reach` rows lie before
    state.first = first


L = TypeVar("L")
"""a layer as it is kept"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftParts(Generic[L]):
    """What a checkpoint holds of a drafter. Shapes as in Drafter."""

    fc: Tensor
    hidden_norm: Tensor
    layers: tuple[L, ...]
    norm: Tensor
    rotary: Tensor


def load_drafter(
    directory: Path,
    *,
    config: DraftConfig,
    target: TargetConfig,
    embedding: Tensor,
    head: Tensor,
    read: TensorReader | None = None,
    progress: Progress | None = None,
) -> Drafter:
    """Read a drafter's tensors; raises CheckpointError if they fit neither config nor target.

    read: None: in float32, where the target's embedding is
    """
    parts = read_drafter(
        directory,
        config=config,
        target=target,
        embedding=embedding,
        head=head,
        read=read or Widened(embedding.device),
        pack=lambda layer: layer,
        progress=progress,
    )
    return Drafter(
        config=config,
        fc=parts.fc,
        hidden_norm=parts.hidden_norm,
        layers=parts.layers,
        norm=parts.norm,
        embedding=embedding,
        head=head,
        rotary=parts.rotary,
    )


def read_drafter(
    directory: Path,
    *,
    config: DraftConfig,
    target: TargetConfig,
    embedding: Tensor,
    head: Tensor,
    read: TensorReader,
    pack: Callable[[DraftLayer], L],
    progress: Progress | None = None,
) -> DraftParts[L]:
    """The same, each layer packed before the next is read."""
    _check_fit(directory, config, target)
    weights = Weights(directory, read=read, skip=_TRAINING_ONLY, progress=progress)
    D, positions = config.hidden_size, target.max_position_embeddings + MAX_ROWS
    with weights.complete():
        _check_copies(weights, embedding, head)
        return DraftParts(
            fc=weights.take("fc.weight", D, D * len(config.target_layer_ids)),
            hidden_norm=weights.take("hidden_norm.weight", D),
            layers=tuple(
                pack(_take_layer(weights, config, i)) for i in range(config.num_hidden_layers)
            ),
            norm=weights.take("norm.weight", D),
            rotary=_rotary(config, positions, host_of(read.device)).to(read.device),
        )


_TRAINING_ONLY = ("verifier_lm_head.", "verifier_norm.")
"""what speculators trains against; older versions saved it too"""


def _rotary(config: DraftConfig, positions: int, device: torch.device) -> Tensor:
    if config.yarn is None:
        return rotary_table(config.head_dim, config.rope_theta, positions, device)
    return yarn_table(config.head_dim, config.rope_theta, positions, device, yarn=config.yarn)


def _check_copies(weights: Weights, embedding: Tensor, head: Tensor) -> None:
    """A drafter may carry the target's embedding and head along, but none of its own."""
    for name, theirs in (("embed_tokens.weight", embedding), ("lm_head.weight", head)):
        if weights.has(name) and same(weights.take(name, *theirs.shape), theirs) is False:
            raise CheckpointError(
                f"{weights.directory}: tensor {name!r} is not the target's; a drafter with an "
                "embedding or head of its own is not supported: give the drafter that was trained "
                "for this target."
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
    with _heads_named(weights, config):
        q, k, v = (
            weights.take(f"{name}self_attn.{part}_proj.weight", heads * D, hidden)
            for part, heads in (("q", H), ("k", HKV), ("v", HKV))
        )
        o = weights.take(f"{name}self_attn.o_proj.weight", hidden, H * D)
    return DraftLayer(
        input_norm=weights.take(f"{name}input_layernorm.weight", hidden),
        q_proj=q,
        kv_proj=torch.cat((k, v)),
        q_norm=weights.take(f"{name}self_attn.q_norm.weight", D),
        k_norm=weights.take(f"{name}self_attn.k_norm.weight", D),
        o_proj=o,
        post_norm=weights.take(f"{name}post_attention_layernorm.weight", hidden),
        gate=weights.take(f"{name}mlp.gate_proj.weight", inner, hidden),
        up=weights.take(f"{name}mlp.up_proj.weight", inner, hidden),
        down=weights.take(f"{name}mlp.down_proj.weight", hidden, inner),
    )


@contextmanager
def _heads_named(weights: Weights, config: DraftConfig) -> Generator[None]:
    """Two drafters of one name differ in their heads: say which ones config.json has."""
    try:
        yield
    except CheckpointError as error:
        heads = ", ".join(
            f"{name} {getattr(config, name)}"
            for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        raise CheckpointError(
            f"{str(error).removesuffix('.')}; {weights.directory / 'config.json'} has {heads}: "
            "give a directory whose config.json and weights are of one drafter."
        ) from None
