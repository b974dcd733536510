# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""From a checkpoint's tensors to a Target: all that the families share, read from the names.

Three things differ from file to file whatever the family: the prefix, the experts' layout, and
whether the head stands in it. Each is told by the names that are there, never by the family or by
who wrote the file, and anything that does not fit is refused by name.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.gdn import GdnWeights
from hybridspec.kernels.reference.rotary import rotary_table
from hybridspec.models import qwen3_5_moe, qwen3_next
from hybridspec.models.operations import Operations
from hybridspec.models.reading import TensorReader, Widened, host_of, same
from hybridspec.models.target import AttentionMixer, GdnMixer, Layer, Mlp, Moe, Target
from hybridspec.models.target_config import TargetConfig
from hybridspec.models.weights import Progress, Weights

HEADS = {
    "model.language_model.": ("lm_head.weight",),
    "language_model.model.": ("language_model.lm_head.weight", "lm_head.weight"),
    "model.": ("lm_head.weight",),
}
"""prefixes of the text model, the more special first, and how the head beside it may be called"""
NOT_RUN = ("mtp.", "model.visual.", "language_model.mtp.", "vision_tower.")
"""the extra layer that predicts one token more, and the vision tower"""
GDN_PROJECTIONS: dict[str, Callable[[Weights, TargetConfig, str], Tensor]] = {
    "qwen3_5_moe": qwen3_5_moe.take_gdn_projections,
    "qwen3_next": qwen3_next.take_gdn_projections,
}
"""by family: [C + HV V + 2 HV, D], queries, keys and values of all heads; z; b; a"""


L = TypeVar("L")
"""a layer as it is kept"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetParts(Generic[L]):
    """What a checkpoint holds of a target. Shapes as in Target."""

    taps: tuple[int, ...]
    embedding: Tensor
    layers: tuple[L, ...]
    norm: Tensor
    head: Tensor
    rotary: Tensor


def load_target(
    directory: Path,
    *,
    operations: Operations,
    taps: tuple[int, ...],
    device: torch.device,
    progress: Progress | None = None,
) -> Target:
    """Read a checkpoint directory; raises CheckpointError that names the field or tensor."""
    config, read = TargetConfig.load(directory), Widened(device)
    return target_of(directory, config, operations, taps=taps, read=read, progress=progress)


def target_of(
    directory: Path,
    config: TargetConfig,
    operations: Operations,
    *,
    taps: tuple[int, ...],
    read: TensorReader,
    progress: Progress | None = None,
) -> Target:
    """The same by any reader: an Outline gives a target of shapes alone."""
    parts = read_target(
        directory, config, taps=taps, read=read, pack=lambda layer: layer, progress=progress
    )
    return Target(
        config=config,
        operations=operations,
        taps=parts.taps,
        embedding=parts.embedding,
        layers=parts.layers,
        norm=parts.norm,
        head=parts.head,
        rotary=parts.rotary,
    )


def read_target(
    directory: Path,
    config: TargetConfig,
    *,
    taps: tuple[int, ...],
    read: TensorReader,
    pack: Callable[[Layer], L],
    progress: Progress | None = None,
) -> TargetParts[L]:
    """Read tensors in the order of layers; each layer is packed before the next is read."""
    weights = Weights(directory, read=read, skip=NOT_RUN, progress=progress)
    prefix = next((prefix for prefix in HEADS if weights.has(prefix)), "model.")
    with weights.complete():
        D, V = config.hidden_size, config.vocab_size
        embedding = weights.take(f"{prefix}embed_tokens.weight", V, D)
        return TargetParts(
            taps=_checked_taps(taps, config, directory),
            embedding=embedding,
            # by map: the variable of a loop would hold a layer while the next is read
            layers=tuple(map(pack, _take_layers(weights, config, prefix))),
            norm=1 + weights.take(f"{prefix}norm.weight", D),
            head=_take_head(weights, config, embedding, HEADS[prefix]),
            rotary=rotary_table(
                config.rotary_dims,
                config.rope_theta,
                config.max_position_embeddings + MAX_ROWS,
                host_of(read.device),
            ).to(read.device),
        )


def _checked_taps(taps: tuple[int, ...], config: TargetConfig, directory: Path) -> tuple[int, ...]:
    layers = len(config.layer_types)
    for tap in taps:
        if not 0 <= tap < layers:
            raise CheckpointError(
                f"the drafter taps layer {tap}, but {directory} has layers 0 to {layers - 1}; "
                "give the drafter that was trained for this target."
            )
    return taps


def _take_head(
    weights: Weights, config: TargetConfig, embedding: Tensor, names: tuple[str, ...]
) -> Tensor:
    """The head, or the embedding if they are tied.

    A head that stands in the file goes before the configuration's word: Transformers, too, ties
    only what is equal.
    """
    name = next((name for name in names if weights.has(name)), names[0])
    is_tied = config.tie_word_embeddings
    if is_tied and not weights.has(name):
        return embedding
    head = weights.take(name, config.vocab_size, config.hidden_size)
    return embedding if is_tied and same(head, embedding) else head


def _take_layers(weights: Weights, config: TargetConfig, prefix: str) -> Iterator[Layer]:
    D = config.hidden_size
    for number, kind in enumerate(config.layer_types):
        index = config.layer_types[:number].count(kind)
        name = f"{prefix}layers.{number}."
        take_mixer = _take_gdn if kind == "linear_attention" else _take_attention
        take_mlp = _take_moe if config.routed_layers[number] else _take_mlp
        yield Layer(
            input_norm=1 + weights.take(f"{name}input_layernorm.weight", D),
            mixer=take_mixer(weights, config, name, index),
            post_norm=1 + weights.take(f"{name}post_attention_layernorm.weight", D),
            mlp=take_mlp(weights, config, f"{name}mlp."),
        )


def _take_gdn(weights: Weights, config: TargetConfig, layer: str, index: int) -> GdnMixer:
    name = f"{layer}linear_attn."
    D, C, taps = config.hidden_size, config.conv_width, config.linear_conv_kernel_dim
    HV, V = config.linear_num_value_heads, config.linear_value_head_dim
    return GdnMixer(
        index=index,
        in_proj=GDN_PROJECTIONS[config.family](weights, config, name),
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


def _take_mlp(weights: Weights, config: TargetConfig, name: str) -> Mlp:
    D, inner = config.hidden_size, config.intermediate_size
    return Mlp(
        gate=weights.take(f"{name}gate_proj.weight", inner, D),
        up=weights.take(f"{name}up_proj.weight", inner, D),
        down=weights.take(f"{name}down_proj.weight", D, inner),
    )


def _take_moe(weights: Weights, config: TargetConfig, name: str) -> Moe:
    D, S = config.hidden_size, config.shared_expert_intermediate_size
    router = weights.take(f"{name}gate.weight", config.num_experts, D)
    gate_up, down = _take_experts(weights, config, f"{name}experts.")
    shared = [
        weights.take(f"{name}shared_expert.gate_proj.weight", S, D),
        weights.take(f"{name}shared_expert.up_proj.weight", S, D),
        weights.take(f"{name}shared_expert_gate.weight", 1, D),
    ]
    return Moe(
        router=router,
        gate_up=gate_up,
        down=down,
        shared_in=torch.cat(shared),
        shared_down=weights.take(f"{name}shared_expert.down_proj.weight", D, S),
    )


LAYOUTS = {
    "fused": re.compile(r"(gate_up|down)_proj"),
    "fused, as weights": re.compile(r"(gate_up|down)_proj\.weight"),
    "one by one": re.compile(r"\d+\.(gate|up|down)_proj\.weight"),
}
"""what the tensors of a layer's experts are called"""


def _take_experts(weights: Weights, config: TargetConfig, name: str) -> tuple[Tensor, Tensor]:
    """gate_up [E, 2I, D] and down [D, E, I], packed as `kernels.reference.experts` reads them."""
    D, E, inner = config.hidden_size, config.num_experts, config.moe_intermediate_size
    layout = _expert_layout(weights, name)
    if layout != "one by one":
        end = ".weight" if layout == "fused, as weights" else ""
        gate_up = weights.take(f"{name}gate_up_proj{end}", E, 2 * inner, D)
        down = weights.take(f"{name}down_proj{end}", E, D, inner)
        return gate_up, down.transpose(0, 1).contiguous()
    weights.compare(f"{name}0.gate_proj.weight", inner, D)
    read = weights.read
    gate_up = torch.empty(E, 2 * inner, D, dtype=read.dtype, device=read.device)
    down = torch.empty(D, E, inner, dtype=read.dtype, device=read.device)
    for expert in range(E):  # into place one by one: no second copy of a layer
        gate_up[expert, :inner] = weights.take(f"{name}{expert}.gate_proj.weight", inner, D)
        gate_up[expert, inner:] = weights.take(f"{name}{expert}.up_proj.weight", inner, D)
        down[:, expert] = weights.take(f"{name}{expert}.down_proj.weight", D, inner)
    return gate_up, down


def _expert_layout(weights: Weights, name: str) -> str:
    """The layout that a layer's names follow; names of two layouts in one layer are refused."""
    found: dict[str, str] = {}
    for full in weights.names(name):
        for layout, pattern in LAYOUTS.items():
            if pattern.fullmatch(full.removeprefix(name)):
                found.setdefault(layout, full)
    if len(found) > 1:
        first, second, *_ = found.values()
        raise CheckpointError(
            f"{weights.directory}: a layer's experts are stored in two ways, "
            f"{shown(first)} and {shown(second)}; the checkpoint is a mixture of two."
        )
    return next(iter(found), "fused")
