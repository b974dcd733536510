# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""config.json of a target, read into a frozen dataclass.

Only what the code honours is accepted: a field that would change the result and is not supported is
refused by name. Fields and their meaning: the configuration classes of qwen3_5_moe and qwen3_next
in Transformers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.models.config_fields import Fields, check_multiple, token_ids

FAMILIES = {
    "qwen3_5_moe_text": "qwen3_5_moe",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_next": "qwen3_next",
}
"""family of each `model_type` that loads; of `qwen3_5_moe` the text model under `text_config`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Sizes of a Gated DeltaNet + mixture-of-experts target."""

    family: str
    """how the tensors are laid out: a value of FAMILIES"""
    vocab_size: int
    hidden_size: int
    layer_types: tuple[str, ...]
    """`linear_attention` (GDN) or `full_attention` of each layer"""
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dims: int
    """how many of head_dim turn with the position"""
    rope_theta: float
    max_position_embeddings: int
    rms_norm_eps: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    routed_layers: tuple[bool, ...]
    """of each layer, whether it has a router and experts, or a plain gated MLP; one at least has"""
    intermediate_size: int
    """width of the plain MLPs; 0 if there are none"""
    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    """whether the shares of the chosen experts are made to sum to 1"""
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values of all heads."""
        return (
            2 * self.linear_num_key_heads * self.linear_key_head_dim
            + self.linear_num_value_heads * self.linear_value_head_dim
        )

    @property
    def num_gdn_layers(self) -> int:
        """Layers with a recurrent state."""
        return self.layer_types.count("linear_attention")

    @property
    def num_attention_layers(self) -> int:
        """Layers with a key-value cache."""
        return self.layer_types.count("full_attention")

    @classmethod
    def load(cls, directory: Path) -> "TargetConfig":
        """Read `config.json`; raises CheckpointError that names the field."""
        fields = Fields(directory / "config.json")
        kind = fields.get("model_type", str)
        if kind not in FAMILIES:
            raise CheckpointError(
                f"{fields.path}: model_type {shown(kind)} is not supported as a target; "
                f"supported: {', '.join(FAMILIES)} (Gated DeltaNet with mixture of experts)."
            )
        fields.expect("quantization_config", None)
        stop = fields.values.get("eos_token_id")
        if kind == "qwen3_5_moe":
            fields = fields.inside("text_config")
            fields.expect("model_type", "qwen3_5_moe_text")
        else:  # nothing in it would be read
            fields.expect("text_config", None)
        family = FAMILIES[kind]
        for name, only in (_TARGET_ONLY | _FAMILY_ONLY[family]).items():
            fields.expect(name, only)
        head_dim = fields.positive("head_dim")
        rope_theta, turning = _rope(fields)
        routed = _routed_layers(fields)
        config = cls(
            **{name: fields.positive(name) for name in _TARGET_SIZES},
            family=family,
            head_dim=head_dim,
            rotary_dims=int(head_dim * turning),
            rope_theta=rope_theta,
            rms_norm_eps=fields.rate("rms_norm_eps", 1e-6),
            layer_types=_target_layer_types(fields),
            routed_layers=routed,
            intermediate_size=0 if all(routed) else fields.positive("intermediate_size"),
            norm_topk_prob=fields.get("norm_topk_prob", bool, True),
            tie_word_embeddings=fields.get("tie_word_embeddings", bool, False),
            # of a nested configuration, the root's where the text's own is missing
            eos_token_ids=token_ids(fields.values.get("eos_token_id", stop), fields.path),
        )
        _check_heads(config, fields.path)
        return config


_TARGET_ONLY: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "use_sliding_window": False,
    "quantization_config": None,
}
"""fields that would change the result, with the only value that is computed here"""
_FAMILY_ONLY: dict[str, dict[str, object]] = {
    # Transformers normalises and routes every layer of this family whatever these fields say
    "qwen3_5_moe": {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1},
    "qwen3_next": {},
}
_TARGET_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


def _target_layer_types(fields: Fields) -> tuple[str, ...]:
    layers = fields.positive("num_hidden_layers")
    types = fields.values.get("layer_types")
    if types is None:
        interval = fields.positive("full_attention_interval")
        types = [
            "full_attention" if (i + 1) % interval == 0 else "linear_attention"
            for i in range(layers)
        ]
    if not isinstance(types, list) or len(types) != layers:
        raise CheckpointError(
            f"{fields.path}: layer_types must list {layers} layers, got {shown(types)}."
        )
    for name in types:
        if name not in ("linear_attention", "full_attention"):
            raise CheckpointError(
                f"{fields.path}: layer type {shown(name)} is not supported; "
                "supported: 'linear_attention', 'full_attention'."
            )
    return tuple(types)


def _rope(fields: Fields) -> tuple[float, float]:
    """Theta, and how much of a head turns: within one object, or beside it at the root.

    As in Transformers the object is `rope_scaling`, else `rope_parameters`, and what stands in it
    goes before the root.
    """
    name = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    inside: dict[str, Any] = fields.get(name, dict, {})
    kind = inside.get("rope_type", inside.get("type", "default"))
    if kind != "default":
        raise CheckpointError(
            f"{fields.path}: field {name!r} has rope_type {shown(kind)}; "
            "only 'default' is supported."
        )
    found = Fields(fields.path, fields.values | inside)
    if "rope_theta" not in found.values:
        raise CheckpointError(
            f"{fields.path}: field 'rope_theta' is missing, at the root and in 'rope_parameters'."
        )
    return found.rate("rope_theta"), found.rate("partial_rotary_factor", 0.25)


def _routed_layers(fields: Fields) -> tuple[bool, ...]:
    """Which layers have a router; a model in which none has is refused."""
    layers = fields.positive("num_hidden_layers")
    is_given = fields.values.get("decoder_sparse_step") is not None
    step = fields.positive("decoder_sparse_step") if is_given else 1
    plain = fields.get("mlp_only_layers", list, [])
    for number in plain:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < layers:
            raise CheckpointError(
                f"{fields.path}: mlp_only_layers must list layers from 0 to {layers - 1}, "
                f"got {shown(number)}."
            )
    routed = tuple((i + 1) % step == 0 and i not in plain for i in range(layers))
    if not any(routed):
        raise CheckpointError(
            f"{fields.path}: mlp_only_layers {shown(plain)} and decoder_sparse_step {step} leave "
            f"none of {layers} layers with a router; dense models are not supported."
        )
    return routed


def _check_heads(config: TargetConfig, path: Path) -> None:
    check_multiple(config, "num_attention_heads", "num_key_value_heads", path)
    check_multiple(config, "linear_num_value_heads", "linear_num_key_heads", path)
    if config.rotary_dims % 2 or not 0 < config.rotary_dims <= config.head_dim:
        raise CheckpointError(
            f"{path}: partial_rotary_factor gives {config.rotary_dims} rotary dimensions; "
            f"an even number from 2 to head_dim {config.head_dim} is needed."
        )
    if config.linear_conv_kernel_dim < 2:
        raise CheckpointError(f"{path}: linear_conv_kernel_dim must be at least 2, got 1.")
    if config.num_experts_per_tok > config.num_experts:
        raise CheckpointError(
            f"{path}: num_experts_per_tok {config.num_experts_per_tok} exceeds "
            f"num_experts {config.num_experts}."
        )
