# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""config.json of a drafter, read into a frozen dataclass.

Only what the code honours is accepted: a field that would change the result and is not supported is
refused by name. Fields and their meaning: the configurations of z-lab's DFlash checkpoints.
"""

from dataclasses import dataclass
from pathlib import Path

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.core.options import MAX_ROWS
from hybridspec.models.config_fields import Fields, check_multiple


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
                f"{fields.path}: architectures {shown(architectures)} is not a drafter that "
                "loads here; supported: ['DFlashDraftModel']."
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
            num_target_layers=_depth(fields),
        )
        check_multiple(config, "num_attention_heads", "num_key_value_heads", fields.path)
        return config


_DRAFT_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)


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
            f"{fields.path}: layer_types {shown(types)} is not supported; "
            f"supported: {layers} times 'full_attention'."
        )


def _draft_rope_theta(fields: Fields) -> float:
    """At the root, or in `rope_parameters`, where Transformers 5 writes it."""
    if fields.values.get("rope_parameters") is None:
        return fields.rate("rope_theta")
    rope = fields.inside("rope_parameters")
    rope.expect("rope_type", "default")
    return rope.rate("rope_theta")


def _depth(fields: Fields) -> int | None:
    is_given = fields.values.get("num_target_layers") is not None
    return fields.positive("num_target_layers") if is_given else None


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
            f"{fields.path}: target_layer_ids must list layers from 0, got {shown(ids)}."
        )
    return tuple(ids)
