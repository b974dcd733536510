# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The target as captured rounds run it: the forward of target.py in the launches of kernels/.

Same interface, same states, same results up to rounding; target.py is its reference, this file what
decoding costs. A norm is part of the launch that reads it, an addition to the residual stream of
the launch that makes what is added (kernels/reference/stream.py). Nothing in here asks how many
rows there are: counts are read on the device, and every launch is the same in every round.

What a reader gets wrong: buffers are the target's, not the round's. What a pass left in them is
gone with the next pass.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS, Mode
from hybridspec.core.records import Reading, Routed
from hybridspec.kernels import attention, experts, gdn, head, product, router, stream
from hybridspec.kernels.reference.gdn import Convolution
from hybridspec.kernels.reference.norm import HeadGate, Heads
from hybridspec.kernels.reference.router import Routing, Steering
from hybridspec.kernels.reference.stream import Stream
from hybridspec.models import prefill, prefill_library
from hybridspec.models.fused_layers import (
    Destination,
    FusedLayer,
    FusedMoe,
    check_widths,
    fuse,
    shared_pieces,
)
from hybridspec.models.state import TargetState
from hybridspec.models.target import AttentionMixer, GdnMixer, Target
from hybridspec.models.target_config import TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedState(TargetState):
    """The same memory as the kernels want it: recurrent states [layers, HV, V, K] underneath."""

    mode: Mode

    def commit(self, rows: Tensor) -> None:
        """As the reference; all layers in one launch."""
        move = gdn.commit if self.mode == "exact" else gdn.commit_block
        move(self.conv, self.recurrent, self.records, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedRouted(Routed):
    """Rows that stand before the first router's experts, in the target's buffers.

    normed lacks its scale. expert_ids are int32, stale beyond the rows read.
    """

    most_rows: int
    """rows that there could have been"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """What launches of a pass hand to each other."""

    tokens: Tensor
    """[MAX_ROWS] int64"""
    stream: Stream
    routings: tuple[Routing, ...]
    """one a layer; they share all but the count"""
    counts: Tensor
    """[layers] int32: experts that the last pass fetched in each layer, the shared one included"""
    taps: Tensor
    """[MAX_ROWS, taps D]: outputs of the tapped layers, in the drafter's order"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedTarget:
    """The model whose output decoding reproduces."""

    config: TargetConfig
    mode: Mode
    taps: tuple[int, ...]
    embedding: Tensor
    layers: tuple[FusedLayer, ...]
    norm: Tensor
    head: Tensor
    rotary: Tensor
    buffers: Buffers
    steered: Tensor | None = None
    """[layers, positions, k] int32: experts that a benchmark prescribes"""

    @classmethod
    def of(
        cls, target: Target, *, mode: Mode, dtype: torch.dtype, device: torch.device
    ) -> "FusedTarget":
        """The same weights on a device in `dtype`, packed for the kernels, a layer at a time.

        Norms of whole rows stay in float32. Raises OptionError where the kernels lack a width, and
        on CUDA without flash-linear-attention.
        """
        if device.type == "cuda":
            prefill_library.require_fla()
        config, to = target.config, Destination(device, dtype)
        check_widths(config)
        width = config.moe_intermediate_size
        return cls(
            config=config,
            mode=mode,
            taps=target.taps,
            embedding=to(target.embedding),
            layers=tuple(fuse(layer, width, to) for layer in target.layers),
            norm=target.norm.to(device),
            head=to(target.head),
            rotary=target.rotary.to(device),
            buffers=empty_buffers(config, len(target.taps), dtype, device),
        )

    def using(self, mode: Mode) -> "FusedTarget":
        """The same weights and buffers in another mode."""
        return replace(self, mode=mode)

    @property
    def first_moe(self) -> tuple[int, FusedMoe]:
        """Number and experts of the first layer that has a router."""
        numbered = enumerate(self.layers)
        return next((i, layer.mlp) for i, layer in numbered if isinstance(layer.mlp, FusedMoe))

    @property
    def fetched(self) -> Tensor:
        """[routers] int32: distinct routed experts of each layer that the last pass read."""
        routed = [number for number, is_routed in enumerate(self.config.routed_layers) if is_routed]
        return self.buffers.counts[routed] - self.buffers.routings[0].pieces

    def empty_state(self, positions: int) -> FusedState:
        """A state that has read nothing, with room for `positions` and one block beyond."""
        plain = TargetState.empty(self.config, positions, self.head.device, dtype=self.head.dtype)
        parts = {part.name: getattr(plain, part.name) for part in fields(plain)}
        parts["recurrent"] = plain.recurrent.mT.contiguous().mT
        return FusedState(mode=self.mode, **parts)

    def read_prompt(self, tokens: Tensor, state: TargetState) -> Reading:
        """Read tokens [N] int64 that are certain; the state moves past them.

        The Reading has the taps of all rows, but tokens and gaps of the last. On CUDA as in
        prefill.py; in the interpreter by the launches of decoding, a block at a time.
        """
        if tokens.is_cuda:
            return prefill.read_prompt(self, tokens, state)
        taps, last = [], tokens[:0]
        gaps = tokens.new_zeros(0, dtype=torch.float32)
        for block in tokens.split(MAX_ROWS):
            rows = torch.tensor(len(block), dtype=torch.int32, device=tokens.device)
            reading = self.read_on(self.read_to_router(block, rows, state), rows, state)
            state.commit(rows)
            state.length.add_(rows)
            taps.append(reading.taps[: len(block)].clone())
            last, gaps = reading.tokens[len(block) - 1 :][:1], reading.gaps[len(block) - 1 :][:1]
        return Reading(tokens=last, gaps=gaps, taps=torch.cat(taps))

    def read_to_router(self, tokens: Tensor, rows: Tensor, state: TargetState) -> FusedRouted:
        """Read the first `rows` tokens of a block up to the first router; no expert runs.

        tokens [B] int64; rows [] int32, 1..B
        """
        own, (first, moe) = self.buffers, self.first_moe
        own.tokens[: len(tokens)].copy_(tokens)
        walk = Walk(state=state, rows=rows, most_rows=len(tokens))
        stream.enter(own.tokens, rows, self.embedding, self.layers[0].input_norm, own.stream)
        for number in range(first):
            self._mix(number, walk)
            self._feed(number, walk)
        self._mix(first, walk)
        self._route(first, moe, walk)
        return FusedRouted(
            residual=own.stream.residual,
            normed=own.stream.scaled,
            expert_ids=own.routings[first].ids,
            expert_weights=own.routings[first].weights,
            most_rows=len(tokens),
        )

    def read_on(self, routed: Routed, rows: Tensor, state: TargetState) -> Reading:
        """Read the first `rows` of the routed rows to the end; the others fetch no expert.

        rows [] int32, 1..rows that were routed
        """
        assert isinstance(routed, FusedRouted)
        own, (first, moe) = self.buffers, self.first_moe
        walk = Walk(state=state, rows=rows, most_rows=routed.most_rows)
        if routed.most_rows > 1:  # a row may have been dropped
            router.relist(own.routings[first], rows)
        self._run_experts(first, moe, walk)
        for number in range(first + 1, len(self.layers)):
            self._mix(number, walk)
            self._feed(number, walk)
        tokens, gaps = head.read_head_scaled(
            own.stream.scaled, own.stream.squares, self.head, rows, self.config.rms_norm_eps
        )
        return Reading(tokens=tokens, gaps=gaps, taps=own.taps)

    def _mix(self, number: int, walk: "Walk") -> None:
        """Add the mixer's output to the stream."""
        layer, held = self.layers[number], self.buffers.stream
        weight, following = layer.mixer.out_proj, layer.post_norm
        if isinstance(layer.mixer, GdnMixer):
            heads, eps = self._gdn(layer.mixer, walk), self.config.rms_norm_eps
            product.project_heads_onto(heads, weight, walk.rows, eps, held, following)
        else:
            x = self._attention(layer.mixer, walk)
            product.project_onto(x, weight, walk.rows, held, following)

    def _feed(self, number: int, walk: "Walk") -> None:
        """Add what follows the mixer, experts or a dense MLP."""
        mlp = self.layers[number].mlp
        if isinstance(mlp, FusedMoe):
            self._route(number, mlp, walk)
            self._run_experts(number, mlp, walk)
        else:
            own, eps = self.buffers.stream, self.config.rms_norm_eps
            x = product.project_gated(own, mlp.gate_up, walk.rows, eps)
            following, taps = self._following(number)
            product.project_onto(x, mlp.down, walk.rows, own, following, taps)

    def _gdn(self, mixer: GdnMixer, walk: "Walk") -> Heads:
        config, state, records = self.config, walk.state, walk.state.gdn_records(mixer.index)
        HV, V, C = config.linear_num_value_heads, config.linear_value_head_dim, config.conv_width
        device, before = walk.rows.device, state.gdn(mixer.index)
        convolution = Convolution(
            weight=mixer.weights.conv,
            past=before.conv,
            inputs=records.inputs,
            mixed=torch.empty(MAX_ROWS, C, dtype=torch.float32, device=device),
        )
        is_walk = self.mode == "exact" or walk.most_rows == 1
        y = self._project(mixer.in_proj, walk, convolution if is_walk else None)
        z, b, a = y[:, C : C + HV * V], *y[:, C + HV * V : C + HV * V + 2 * HV].chunk(2, dim=1)
        groups = gdn.head_groups(config.linear_key_head_dim, V)
        squares = torch.empty(MAX_ROWS, HV, groups, dtype=torch.float32, device=device)
        gate = HeadGate(z=z.view(-1, HV, V), weight=mixer.norm, squares=squares)
        rest = a, b, mixer.weights, before, records, walk.rows, gate
        rows = gdn.walk(convolution.mixed, *rest) if is_walk else gdn.verify_block(y[:, :C], *rest)
        return Heads(rows=rows, squares=squares)

    def _attention(self, mixer: AttentionMixer, walk: "Walk") -> Tensor:
        y, state = self._project(mixer.in_proj, walk), walk.state
        return attention.attend_gated(
            y,
            mixer.q_norm,
            mixer.k_norm,
            self.config.rms_norm_eps,
            self.rotary,
            state.keys[mixer.index],
            state.values[mixer.index],
            state.length,
            walk.rows,
        )

    def _project(
        self, weight: Tensor, walk: "Walk", convolution: Convolution | None = None
    ) -> Tensor:
        eps = self.config.rms_norm_eps
        return product.project(self.buffers.stream, weight, walk.rows, eps, convolution)

    def _route(self, number: int, moe: FusedMoe, walk: "Walk") -> None:
        steering = None
        if self.steered is not None:
            steering = Steering(table=self.steered[number], length=walk.state.length)
        router.route_stream(
            self.buffers.stream,
            moe.router,
            walk.rows,
            self.config.rms_norm_eps,
            self.buffers.routings[number],
            steering,
            most_rows=walk.most_rows,
        )

    def _run_experts(self, number: int, moe: FusedMoe, walk: "Walk") -> None:
        following, taps = self._following(number)
        experts.experts_onto(
            self.buffers.stream,
            self.buffers.routings[number],
            moe.gate_up,
            moe.down,
            walk.rows,
            following,
            taps,
            most_rows=walk.most_rows,
        )

    def _following(self, number: int) -> tuple[Tensor, Tensor | None]:
        """The norm that reads a layer's output next, and where that output is set aside."""
        is_last = number + 1 == len(self.layers)
        following = self.norm if is_last else self.layers[number + 1].input_norm
        if number not in self.taps:
            return following, None
        D, place = self.config.hidden_size, self.taps.index(number)
        return following, self.buffers.taps[:, place * D : (place + 1) * D]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """What is the same in every layer of a pass."""

    state: TargetState
    rows: Tensor
    """[] int32: rows that are read"""
    most_rows: int
    """rows that launches have programs for"""


def empty_buffers(
    config: TargetConfig, taps: int, dtype: torch.dtype, device: torch.device
) -> Buffers:
    """Buffers of a target whose outputs are tapped in so many layers."""
    D = config.hidden_size
    counts = torch.zeros(len(config.layer_types), dtype=torch.int32, device=device)
    routing = Routing.empty(
        config.num_experts,
        config.num_experts_per_tok,
        device,
        pieces=shared_pieces(config),
        sums_to_one=config.norm_topk_prob,
        parts=router.splits(D),
    )
    return Buffers(
        tokens=torch.zeros(MAX_ROWS, dtype=torch.int64, device=device),
        stream=Stream.empty(D, dtype=dtype, device=device),
        routings=tuple(replace(routing, count=count) for count in counts.unbind()),
        counts=counts,
        taps=torch.zeros(MAX_ROWS, taps * D, dtype=dtype, device=device),
    )
