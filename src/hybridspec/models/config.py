# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""config.json of a target and of a drafter, read into frozen dataclasses.

Only what the code honours is accepted: a field that would change the result and is not supported is
refused by name. Fields and their meaning: the configuration classes of qwen3_5_moe in Transformers,
and of z-lab's DFlash checkpoints.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridspec.core.errors import CheckpointError
from hybridspec.core.jsonfile import read_object
from hybridspec.core.options import MAX_ROWS

TARGET_TYPES = ("qwen3_5_moe_text", "qwen3_5_moe")
"""`model_type` of the targets that load: flat, and nested under `text_config`"""

LARGEST_SIZE = 1 << 24
"""more than any size or position count of these families; a larger one is a damaged file"""
LARGEST_RATE = 1e30


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Sizes of a DFlash drafter."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    block_size: int
    """rows of a block, the anchor included"""
    mask_token_id: int
    """token whose embedding fills the rows to be drafted"""
    target_layer_ids: tuple[int, ...]
    """target layers whose outputs are tapped, from 0"""
    num_target_layers: int | None
    """depth of the target that the drafter was trained for, if it says so"""

    @classmethod
    def load(cls, directory: Path) -> "DraftConfig":
        """Read `config.json`; raises CheckpointError that names the field."""
        fields = Fields(directory / "config.json")
        architectures = fields.values.get("architectures")
        if architectures != ["DFlashDraftModel"]:
            raise CheckpointError(
                f"{fields.path}: architectures {architectures!r} is not a drafter that loads here; "
                "supported: ['DFlashDraftModel']."
            )
        nested = fields.inside("dflash_config") if "dflash_config" in fields.values else fields
        layers = fields.positive("num_hidden_layers")
        _refuse_unsupported_draft(fields, nested, layers)
        block = (nested if "block_size" in nested.values else fields).positive("block_size")
        if not 2 <= block <= MAX_ROWS:
            raise CheckpointError(
                f"{fields.path}: block_size {block} is not supported: blocks hold 2 to {MAX_ROWS} "
                f"rows. Use a drafter with block_size {MAX_ROWS} or less."
            )
        config = cls(
            **{name: fields.positive(name) for name in _DRAFT_SIZES},
            num_hidden_layers=layers,
            rope_theta=_draft_rope_theta(fields),
            rms_norm_eps=fields.rate("rms_norm_eps", 1e-6),
            block_size=block,
            mask_token_id=nested.get("mask_token_id", int),
            target_layer_ids=_tap_ids(nested, fields, layers),
            num_target_layers=fields.values.get("num_target_layers"),
        )
        _check_multiple(config, "num_attention_heads", "num_key_value_heads", fields.path)
        return config


class Fields:
    """One JSON object of a configuration; every complaint names file and field."""

    def __init__(self, path: Path, values: dict[str, Any] | None = None) -> None:
        """`values` default to the JSON object in `path`."""
        self.path = path
        self.values = read_json(path) if values is None else values

    def inside(self, name: str) -> "Fields":
        """The object under a field."""
        return Fields(self.path, self.get(name, dict))

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field's value, of the type asked for; without a default a missing field is an error."""
        value = self.values.get(name, default)
        if value is None:
            raise CheckpointError(f"{self.path}: field {name!r} is missing.")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(
                f"{self.path}: field {name!r} must be of type {kind.__name__}, got {value!r}."
            )
        return value

    def positive(self, name: str) -> int:
        """A size: a whole number from 1 to LARGEST_SIZE."""
        value = self.get(name, int)
        if not 1 <= value <= LARGEST_SIZE:
            raise CheckpointError(
                f"{self.path}: field {name!r} must be from 1 to {LARGEST_SIZE}, "
                f"got {str(value)[:40]}."
            )
        return value

    def rate(self, name: str, default: float | None = None) -> float:
        """A number above 0 that is neither NaN nor infinite."""
        value: Any = self.values.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < LARGEST_RATE:
            raise CheckpointError(
                f"{self.path}: field {name!r} must be a number above 0, got {value!r:.40}."
            )
        return float(value)

    def expect(self, name: str, only: object) -> None:
        """Refuse a field with any value but the one that is supported; it may be absent or null."""
        value = self.values.get(name)
        if value is not None and value != only:
            raise CheckpointError(
                f"{self.path}: field {name!r} is {value!r}; only {only!r} is supported."
            )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a checkpoint's file; raises CheckpointError with file and place."""
    return read_object(path, CheckpointError, if_missing="give a checkpoint directory that has it")


def token_ids(value: object, path: Path) -> tuple[int, ...]:
    """One id, a list of ids or nothing, as `eos_token_id` is written."""
    ids: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise CheckpointError(
            f"{path}: eos_token_id must be a token id or a list of them, got {value!r}."
        )
    return tuple(ids)


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
_DRAFT_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
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
    _check_multiple(config, "num_attention_heads", "num_key_value_heads", path)
    _check_multiple(config, "linear_num_value_heads", "linear_num_key_heads", path)
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


def _check_multiple(config: object, more: str, fewer: str, path: Path) -> None:
    large, small = getattr(config, more), getattr(config, fewer)
    if large % small:
        raise CheckpointError(f"{path}: {more} {large} is not a multiple of {fewer} {small}.")


def _refuse_unsupported_draft(fields: Fields, nested: Fields, layers: int) -> None:
    fields.expect("hidden_act", "silu")
    fields.expect("attention_bias", False)
    fields.expect("rope_scaling", None)
    for level in (fields, nested):
        level.expect("is_causal", False)
        for name in ("output_multiplier", "final_logit_softcapping", "input_embedding_scale"):
            level.expect(name, None)
    types = fields.values.get("layer_types")
    if types is None:  # then this flag alone makes layers slide
        fields.expect("use_sliding_window", False)
        types = ["full_attention"] * layers
    if types != ["full_attention"] * layers:
        raise CheckpointError(
            f"{fields.path}: layer_types {types!r} is not supported; "
            f"supported: {layers} times 'full_attention'."
        )


def _draft_rope_theta(fields: Fields) -> float:
    """At the root, or in `rope_parameters`, where Transformers 5 writes it."""
    if fields.values.get("rope_parameters") is None:
        return fields.rate("rope_theta")
    rope = fields.inside("rope_parameters")
    rope.expect("rope_type", "default")
    return rope.rate("rope_theta")


def _tap_ids(nested: Fields, fields: Fields, layers: int) -> tuple[int, ...]:
    ids = nested.values.get("target_layer_ids")
    if ids is None:
        # the default of z-lab's checkpoints: evenly from the second layer to the third from the end
        depth = fields.positive("num_target_layers")
        if layers == 1:
            return (depth // 2,)
        return tuple(round(1 + i * (depth - 4) / (layers - 1)) for i in range(layers))
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(
            f"{fields.path}: target_layer_ids must list layers from 0, got {ids!r}."
        )
    return tuple(ids)
