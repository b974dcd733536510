# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Real shapes with random weights, made on the device: what costs time is bytes, not their values.

Whoever shows a number from these says so beside it.
"""

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS, Mode
from hybridspec.kernels.reference.gdn import GdnWeights
from hybridspec.kernels.reference.rotary import rotary_table
from hybridspec.kernels.reference.stream import TILE, Stream
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.fused import FusedTarget, empty_buffers
from hybridspec.models.fused_draft import FusedDrafter, FusedDraftLayer
from hybridspec.models.fused_layers import FusedLayer, FusedMlp, FusedMoe, shared_pieces
from hybridspec.models.target import AttentionMixer, GdnMixer
from hybridspec.models.target_config import TargetConfig

SPREAD = 0.02


class Draw:
    """Random tensors of one generator."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self.dtype, self.device = dtype, device
        host = "cpu" if device.type == "meta" else device  # an outline draws nothing
        self.generator = torch.Generator(host).manual_seed(seed)

    def matrix(self, *size: int, spread: float = SPREAD) -> Tensor:
        """Gaussian numbers."""
        empty = torch.empty(size, dtype=self.dtype, device=self.device)
        return empty.normal_(0, spread, generator=self.generator)

    def norm(self, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Numbers near 1."""
        return (1 + self.matrix(size, spread=0.1)).to(dtype)


def random_target(
    config: TargetConfig,
    *,
    mode: Mode,
    taps: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    positions: int = 1 << 17,
    seed: int = 0,
    steered: Tensor | None = None,
) -> FusedTarget:
    """A target of these sizes; positions: those that its rotary table covers."""
    draw, counts = Draw(dtype, device, seed), {"linear_attention": 0, "full_attention": 0}
    D, V, layers = config.hidden_size, config.vocab_size, list[FusedLayer]()
    for number, kind in enumerate(config.layer_types):
        mixer = _gdn if kind == "linear_attention" else _attention
        mlp = _moe if config.routed_layers[number] else _mlp
        layers.append(
            FusedLayer(
                input_norm=draw.norm(D),
                mixer=mixer(draw, config, counts[kind]),
                post_norm=draw.norm(D),
                mlp=mlp(draw, config),
            )
        )
        counts[kind] += 1
    return FusedTarget(
        config=config,
        mode=mode,
        taps=taps,
        embedding=draw.matrix(V, D, spread=1.0),
        layers=tuple(layers),
        norm=draw.norm(D),
        head=draw.matrix(V, D),
        rotary=rotary_table(config.rotary_dims, config.rope_theta, positions, device),
        buffers=empty_buffers(config, len(taps), dtype, device),
        steered=steered,
    )


def random_drafter(
    config: DraftConfig, target: FusedTarget, *, positions: int = 1 << 17, seed: int = 1
) -> FusedDrafter:
    """A drafter of these sizes beside a target; rotary without YaRN, which costs the same."""
    head = target.head
    draw, D = Draw(head.dtype, head.device, seed), config.head_dim
    H, HKV = config.num_attention_heads, config.num_key_value_heads
    hidden, inner, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    return FusedDrafter(
        config=config,
        fc=draw.matrix(hidden, len(config.target_layer_ids) * hidden),
        hidden_norm=draw.norm(hidden),
        context=draw.matrix(L * 2 * HKV * D, hidden),
        k_norms=torch.stack([draw.norm(D, head.dtype) for _ in range(L)]),
        layers=tuple(
            FusedDraftLayer(
                input_norm=draw.norm(hidden),
                in_proj=draw.matrix((H + 2 * HKV) * D, hidden),
                q_norm=draw.norm(D, head.dtype),
                k_norm=draw.norm(D, head.dtype),
                o_proj=draw.matrix(hidden, H * D),
                post_norm=draw.norm(hidden),
                gate_up=draw.matrix(2 * inner, hidden),
                down=draw.matrix(hidden, inner),
            )
            for _ in range(L)
        ),
        norm=draw.norm(hidden),
        embedding=target.embedding,
        head=head,
        rotary=rotary_table(D, config.rope_theta, positions, head.device),
        tokens=torch.full((MAX_ROWS,), config.mask_token_id, device=head.device),
        rows=torch.tensor(config.block_size, dtype=torch.int32, device=head.device),
        stream=Stream.empty(hidden, dtype=head.dtype, device=head.device),
    )


def _gdn(draw: Draw, config: TargetConfig, index: int) -> GdnMixer:
    D, C, V = config.hidden_size, config.conv_width, config.linear_value_head_dim
    HV, CONV = config.linear_num_value_heads, config.linear_conv_kernel_dim
    rows = C + HV * V + 2 * HV
    return GdnMixer(
        index=index,
        in_proj=draw.matrix(rows + -rows % TILE, D),
        weights=GdnWeights(
            conv=draw.matrix(CONV, C, spread=0.5),
            decay_rate=draw.matrix(HV, spread=1.0).float().exp(),
            dt_bias=draw.matrix(HV, spread=1.0).float(),
        ),
        norm=draw.norm(V),
        out_proj=draw.matrix(D, HV * V),
    )


def _attention(draw: Draw, config: TargetConfig, index: int) -> AttentionMixer:
    hidden, D = config.hidden_size, config.head_dim
    H, HKV = config.num_attention_heads, config.num_key_value_heads
    return AttentionMixer(
        index=index,
        in_proj=draw.matrix(2 * (H + HKV) * D, hidden),
        q_norm=draw.norm(D, draw.dtype),
        k_norm=draw.norm(D, draw.dtype),
        out_proj=draw.matrix(hidden, H * D),
    )


def _moe(draw: Draw, config: TargetConfig) -> FusedMoe:
    D, width = config.hidden_size, config.moe_intermediate_size
    experts = config.num_experts + shared_pieces(config)
    return FusedMoe(
        router=draw.matrix(config.num_experts + 1, D),
        gate_up=draw.matrix(experts, 2 * width, D),
        down=draw.matrix(experts, D, width),
    )


def _mlp(draw: Draw, config: TargetConfig) -> FusedMlp:
    D, inner = config.hidden_size, config.intermediate_size
    return FusedMlp(gate_up=draw.matrix(2 * inner, D), down=draw.matrix(D, inner))
