# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""config.json of a drafter, read into a frozen dataclass.

Only what the code honours is accepted: a field that would change the result and is not supported is
refused by name. Fields and their meaning: the configurations of z-lab's DFlash checkpoints, those
of DFlash itself in `dflash_config` or, if not there, at the root; what a Qwen3 configuration leaves
unsaid is filled in as Transformers does. Directories of the speculators library are put into that
form first (`speculators.py`): their taps count otherwise.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.rotary import Yarn
from hybridspec.models.config_fields import Fields, check_multiple
from hybridspec.models.speculators import in_form_of_zlab

FULL, SLIDING = "full_attention", "sliding_attention"


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
    yarn: Yarn | None
    """how the rotary embedding is stretched, if it is"""
    rms_norm_eps: float
    block_size: int
    """rows of a block, the anchor included"""
    mask_token_id: int
    """token whose embedding fills the rows to be drafted"""
    target_layer_ids: tuple[int, ...]
    """target layers whose outputs are tapped, from 0"""
    num_target_layers: int | None
    """depth of the target that the drafter was trained for, if it says so"""
    layer_types: tuple[str, ...]
    """FULL or SLIDING, one a layer"""
    sliding_window: int
    """positions that a row of a sliding layer sees, its own included; 0 if no layer slides"""
    is_causal: bool | None
    """whether a row is blind to the block's later rows; None: in sliding layers only"""

    @classmethod
    def load(cls, directory: Path) -> "DraftConfig":
        """Read `config.json`; raises CheckpointError that names the field."""
        fields = Fields(directory / "config.json")
        if "speculators_model_type" in fields.values:
            fields = in_form_of_zlab(fields)
        architectures = fields.values.get("architectures")
        if architectures != ["DFlashDraftModel"]:
            raise CheckpointError(
                f"{fields.path}: architectures {shown(architectures)} is not a drafter that "
                "loads here; supported: ['DFlashDraftModel']."
            )
        nested = _nested(fields)
        layers = fields.positive("num_hidden_layers")
        types = _layer_types(fields, layers)
        theta, yarn = _rotary(fields)
        _refuse_unsupported_draft(fields, nested)
        config = cls(
            **{name: fields.positive(name) for name in _DRAFT_SIZES},
            num_hidden_layers=layers,
            rope_theta=theta,
            yarn=yarn,
            rms_norm_eps=fields.rate("rms_norm_eps", 1e-6),
            block_size=_block_size(nested),
            mask_token_id=nested.get("mask_token_id", int),
            target_layer_ids=_tap_ids(nested, layers),
            num_target_layers=_depth(nested),
            layer_types=types,
            sliding_window=_window(fields) if SLIDING in types else 0,
            is_causal=_flag(nested, "is_causal"),
        )
        check_multiple(config, "num_attention_heads", "num_key_value_heads", fields.path)
        if config.head_dim % 2:
            raise CheckpointError(
                f"{fields.path}: head_dim {config.head_dim} is odd; the rotary embedding turns "
                "dimensions in pairs."
            )
        return config

    def causal(self, kind: str) -> bool:
        """Whether rows are blind to the block's later rows in layers of this kind."""
        return kind == SLIDING if self.is_causal is None else self.is_causal

    @property
    def reach(self) -> int | None:
        """Context rows that a block can see; None: all of them, for a layer does not slide."""
        return self.sliding_window - 1 if FULL not in self.layer_types else None


_DRAFT_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_OTHER_DRAFTERS = (
    "conv_group_size",
    "conv_kernel_size",
    "confidence_head_with_markov",
    "enable_confidence_head",
    "markov_head_type",
    "markov_rank",
    "selector_rank",
    "selector_top_k",
)
"""fields of DFlash 2 and DSpark, whose guesses depend on each other; off or absent here"""
_AT_THE_ROOT = (
    *_DRAFT_SIZES,
    "num_hidden_layers",
    "hidden_act",
    "attention_bias",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
)
"""fields of the Qwen3 configuration, which no code reads inside `dflash_config`"""
_ROTARY = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_OF_PICTURES = ("mrope_interleaved", "mrope_section")
"""how positions of pictures are laid out; text turns the same under any of them"""
_YARN = (
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)


def _nested(fields: Fields) -> Fields:
    """All fields, those of `dflash_config` before those at the root."""
    if fields.values.get("dflash_config") is None:
        return fields
    own = fields.inside("dflash_config").values
    for name in _AT_THE_ROOT:
        if own.get(name) is not None and own[name] != fields.values.get(name):
            raise CheckpointError(
                f"{fields.path}: field {name!r} in dflash_config is {shown(own[name])}, at the "
                f"root {shown(fields.values.get(name))}; it belongs at the root."
            )
    return Fields(fields.path, fields.values | {k: v for k, v in own.items() if v is not None})


def _refuse_unsupported_draft(fields: Fields, nested: Fields) -> None:
    fields.expect("hidden_act", "silu")
    fields.expect("attention_bias", False)
    fields.expect("quantization_config", None)
    for name in ("output_multiplier", "final_logit_softcapping", "input_embedding_scale"):
        nested.expect(name, None)
    for name in _OTHER_DRAFTERS:
        if nested.values.get(name):
            raise CheckpointError(
                f"{fields.path}: field {name!r} is {shown(nested.values[name])}, of a drafter "
                "whose guesses depend on each other (DFlash 2, DSpark); give a DFlash drafter "
                "without it."
            )


def _block_size(nested: Fields) -> int:
    block = nested.positive("block_size")
    if not 2 <= block <= MAX_ROWS:
        raise CheckpointError(
            f"{nested.path}: block_size {block} is not supported: blocks hold 2 to {MAX_ROWS} "
            f"rows. Use a drafter with block_size {MAX_ROWS} or less."
        )
    return block


def _flag(fields: Fields, name: str) -> bool | None:
    return None if fields.values.get(name) is None else fields.get(name, bool)


# sliding layers


def _layer_types(fields: Fields, layers: int) -> tuple[str, ...]:
    """The kind of each layer; without a list as Qwen3Config: with the flag late layers slide."""
    types = fields.values.get("layer_types")
    slides = _flag(fields, "use_sliding_window")
    if types is None:
        first = fields.get("max_window_layers", int, 28) if slides else layers
        return tuple(SLIDING if i >= first else FULL for i in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        raise CheckpointError(
            f"{fields.path}: layer_types must list {layers} layers, got {shown(types)}."
        )
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise CheckpointError(
                f"{fields.path}: layer_types has {shown(kind)}, which is not supported; "
                f"supported: {FULL!r}, {SLIDING!r}."
            )
    if SLIDING in types and slides is False:
        # Qwen3Config would then run these layers causal but without a window: hardly meant
        raise CheckpointError(
            f"{fields.path}: layer_types has {SLIDING!r} but use_sliding_window is false; set it "
            f"to true, or write {FULL!r} for each layer."
        )
    return tuple(types)


def _window(fields: Fields) -> int:
    if fields.values.get("sliding_window") is None:
        raise CheckpointError(
            f"{fields.path}: field 'sliding_window' is missing, but layers slide; give the "
            "positions that a row sees, its own included."
        )
    return fields.positive("sliding_window")


# rotary embedding


def _rotary(fields: Fields) -> tuple[float, Yarn | None]:
    """Theta, and YaRN if that is the type; `rope_parameters` is what Transformers 5 writes."""
    old, new = fields.values.get("rope_scaling"), fields.values.get("rope_parameters")
    if old is not None and new is not None and old != new:
        raise CheckpointError(
            f"{fields.path}: rope_scaling {shown(old)} and rope_parameters {shown(new)} differ; "
            "leave one of them."
        )
    name = "rope_scaling" if new is None else "rope_parameters"
    rope = Fields(fields.path, {} if old is new is None else fields.get(name, dict))
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise CheckpointError(
            f"{fields.path}: {name} has rope_type {shown(kind)}; supported: 'default', 'yarn'."
        )
    known = _ROTARY + _OF_PICTURES + (_YARN if kind == "yarn" else ())
    for field in rope.values:
        if field not in known and rope.values[field] is not None:
            raise CheckpointError(
                f"{fields.path}: field {field!r} in {name} is not supported with rope_type "
                f"{shown(kind)}; supported: {', '.join(known)}."
            )
    for level in (fields, rope):
        level.expect("partial_rotary_factor", 1.0)
    theta = (fields if rope.values.get("rope_theta") is None else rope).rate("rope_theta")
    return theta, _yarn(fields, rope, theta) if kind == "yarn" else None


def _yarn(fields: Fields, rope: Fields, theta: float) -> Yarn:
    """YaRN with the defaults of Transformers 5 (`_compute_yarn_parameters`)."""
    if theta <= 1:
        raise CheckpointError(f"{fields.path}: YaRN needs a rope_theta above 1, got {theta}.")
    original = "original_max_position_embeddings"
    # at the root it comes first; without one YaRN starts from the whole context
    levels = [level for level in (fields, rope) if level.values.get(original) is not None]
    factor = rope.rate("factor")
    return Yarn(
        factor=factor,
        original_max_position_embeddings=levels[0].positive(original)
        if levels
        else fields.positive("max_position_embeddings"),
        beta_fast=_rate(rope, "beta_fast", 32.0),
        beta_slow=_rate(rope, "beta_slow", 1.0),
        truncate=rope.get("truncate", bool, True),
        scale=_yarn_scale(rope, factor),
    )


def _yarn_scale(rope: Fields, factor: float) -> float:
    if rope.values.get("attention_factor") is not None:
        return rope.rate("attention_factor")
    log = math.log(max(factor, 1.0))
    weights: list[Any] = [rope.values.get(name) for name in ("mscale", "mscale_all_dim")]
    if None in weights:  # one alone changes nothing
        return 0.1 * log + 1.0
    above, below = rope.rate("mscale"), rope.rate("mscale_all_dim")
    return (0.1 * above * log + 1.0) / (0.1 * below * log + 1.0)


def _rate(fields: Fields, name: str, default: float) -> float:
    return default if fields.values.get(name) is None else fields.rate(name)


# taps


def _depth(fields: Fields) -> int | None:
    is_given = fields.values.get("num_target_layers") is not None
    return fields.positive("num_target_layers") if is_given else None


def _tap_ids(nested: Fields, layers: int) -> tuple[int, ...]:
    ids = nested.values.get("target_layer_ids")
    if ids is None:
        # the default of z-lab's checkpoints: evenly from the second layer to the third from the end
        depth = nested.positive("num_target_layers")
        if layers == 1:
            return (depth // 2,)
        if depth < 4:
            raise CheckpointError(
                f"{nested.path}: field 'target_layer_ids' is missing, and a target of {depth} "
                "layers is too shallow for the usual taps; list the layers that are tapped."
            )
        return tuple(round(1 + i * (depth - 4) / (layers - 1)) for i in range(layers))
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(
            f"{nested.path}: target_layer_ids must list layers from 0, got {shown(ids)}."
        )
    return tuple(ids)
