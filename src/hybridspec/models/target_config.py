# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""config.json of a target, read into a frozen dataclass.

Only what the code honours is accepted: a field that would change the result and is not supported is
refused by name. Fields and their meaning: the configuration class of qwen3_5_moe in Transformers.
"""

from dataclasses import dataclass
from pathlib import Path

from hybridspec.core.errors import CheckpointError
from hybridspec.models.config_fields import Fields, check_multiple, token_ids

TARGET_TYPES = ("qwen3_5_moe_text", "qwen3_5_moe")
"""`model_type` of the targets that load: flat, and nested under `text_config`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Sizes of a Gated DeltaNet + mixture-of-experts target."""

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
    num_experts: int
    num_experts_per_tok: int
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
        if kind not in TARGET_TYPES:
            raise CheckpointError(
                f"{fields.path}: model_type {kind!r} is not supported as a target; "
                f"supported: {', '.join(TARGET_TYPES)} (Gated DeltaNet with mixture of experts)."
            )
        if kind == "qwen3_5_moe":
            fields = fields.inside("text_config")
        for name, only in _TARGET_ONLY.items():
            fields.expect(name, only)
        rope = fields.inside("rope_parameters")
        rope.expect("rope_type", "default")
        head_dim = fields.positive("head_dim")
        turning = fields.rate("partial_rotary_factor", 0.25)
        rotary_dims = int(head_dim * rope.rate("partial_rotary_factor", turning))
        config = cls(
            **{name: fields.positive(name) for name in _TARGET_SIZES},
            head_dim=head_dim,
            rotary_dims=rotary_dims,
            rope_theta=rope.rate("rope_theta"),
            rms_norm_eps=fields.rate("rms_norm_eps", 1e-6),
            layer_types=_target_layer_types(fields),
            tie_word_embeddings=fields.get("tie_word_embeddings", bool, False),
            eos_token_ids=token_ids(fields.values.get("eos_token_id"), fields.path),
        )
        _check_heads(config, fields.path)
        return config


_TARGET_ONLY: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "rope_scaling": None,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "use_sliding_window": False,
    "quantization_config": None,
}
"""fields that would change the result, with the only value that is computed here"""
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
            f"{fields.path}: layer_types must list {layers} layers, got {types!r}."
        )
    for name in types:
        if name not in ("linear_attention", "full_attention"):
            raise CheckpointError(
                f"{fields.path}: layer type {name!r} is not supported; "
                "supported: 'linear_attention', 'full_attention'."
            )
    return tuple(types)


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
