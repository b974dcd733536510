# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Weights of the target's layers as the launches of kernels/ want them, and which widths they take.

What a reader gets wrong: the shared expert is no module of its own. It lies behind the routed ones,
in pieces as wide as they are, and its gate is the router's last row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybridspec.core.errors import OptionError
from hybridspec.kernels import gdn
from hybridspec.kernels.reference.gdn import GdnWeights
from hybridspec.kernels.reference.stream import TILE
from hybridspec.models.target import AttentionMixer, GdnMixer, Layer, Moe
from hybridspec.models.target_config import TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedMoe:
    """Router, experts and the shared one."""

    router: Tensor
    """[E + 1, D]: the router, then the shared expert's own gate"""
    gate_up: Tensor
    """[E + shared, 2I, D], gate rows first; behind E the shared expert, in pieces of I"""
    down: Tensor
    """[E + shared, D, I]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedMlp:
    """A dense MLP."""

    gate_up: Tensor
    """[2I, D], gate rows first"""
    down: Tensor
    """[D, I]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """One decoder layer."""

    input_norm: Tensor
    """[D] float32"""
    mixer: GdnMixer | AttentionMixer
    """in_proj with zeros up to a multiple of TILE rows"""
    post_norm: Tensor
    """[D] float32"""
    mlp: FusedMoe | FusedMlp


@dataclass(frozen=True, slots=True)
class Destination:
    """Where weights go."""

    device: torch.device
    dtype: torch.dtype

    def __call__(self, weight: Tensor) -> Tensor:
        """Copied there, contiguous."""
        return weight.to(self.device, self.dtype).contiguous()


def check_widths(config: TargetConfig) -> None:
    """Raise OptionError where heads or experts have a width that the kernels do not take."""
    shared_pieces(config)
    for name, widths in (
        ("linear_key_head_dim", gdn.WIDTHS),
        ("linear_value_head_dim", gdn.WIDTHS[1:]),
    ):
        if getattr(config, name) not in widths:
            raise OptionError(
                f"{name} {getattr(config, name)} is none of {', '.join(map(str, widths))}, which "
                "the CUDA kernels take: give --device cpu."
            )


def shared_pieces(config: TargetConfig) -> int:
    """As how many experts the shared one counts. Raises OptionError where it is no multiple."""
    wide, width = config.shared_expert_intermediate_size, config.moe_intermediate_size
    if wide % width:
        raise OptionError(
            f"shared_expert_intermediate_size {wide} is no multiple of moe_intermediate_size "
            f"{width}, which the CUDA kernels need: give --device cpu."
        )
    return wide // width


def fuse(layer: Layer, width: int, to: Destination) -> FusedLayer:
    """A layer's weights packed, on their device; width: of a routed expert."""
    return FusedLayer(
        input_norm=layer.input_norm.to(to.device),
        mixer=_fuse_mixer(layer.mixer, to),
        post_norm=layer.post_norm.to(to.device),
        mlp=_fuse_moe(layer.mlp, width, to)
        if isinstance(layer.mlp, Moe)
        else FusedMlp(
            gate_up=to(torch.cat((layer.mlp.gate, layer.mlp.up))), down=to(layer.mlp.down)
        ),
    )


def _fuse_mixer(mixer: GdnMixer | AttentionMixer, to: Destination) -> GdnMixer | AttentionMixer:
    if isinstance(mixer, AttentionMixer):
        return AttentionMixer(
            index=mixer.index,
            in_proj=to(_padded(mixer.in_proj)),
            q_norm=to(mixer.q_norm),
            k_norm=to(mixer.k_norm),
            out_proj=to(mixer.out_proj),
        )
    return GdnMixer(
        index=mixer.index,
        in_proj=to(_padded(mixer.in_proj)),
        weights=GdnWeights(
            conv=to(mixer.weights.conv),
            decay_rate=mixer.weights.decay_rate.to(to.device),
            dt_bias=mixer.weights.dt_bias.to(to.device),
        ),
        norm=mixer.norm.to(to.device),
        out_proj=to(mixer.out_proj),
    )


def _fuse_moe(moe: Moe, width: int, to: Destination) -> FusedMoe:
    D, S = moe.shared_down.shape
    both, own = moe.shared_in.split((2 * S, 1))
    pieces = both.view(2, -1, width, D).transpose(0, 1)  # gate and up of each
    down = moe.shared_down.view(D, -1, width).transpose(0, 1)
    return FusedMoe(
        router=to(torch.cat((moe.router, own))),
        gate_up=to(torch.cat((moe.gate_up, pieces.reshape(-1, 2 * width, D)))),
        down=to(torch.cat((moe.down.transpose(0, 1), down))),
    )


def _padded(weight: Tensor) -> Tensor:
    """Zeros up to a whole number of tiles of rows."""
    return torch.cat((weight, weight.new_zeros(-len(weight) % TILE, weight.shape[1])))
