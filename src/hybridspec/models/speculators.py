# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""config.json of a DFlash drafter as the speculators library writes it, in the form of z-lab's.

The network and the names of its tensors are the same. Taps are not: an id k there means what goes
into layer k, so what comes out of layer k - 1; z-lab's ids, and ours, name the layer that it comes
out of. Whatever makes another network of it (a reduced draft vocabulary, a drafted anchor, Markov
or confidence heads) is refused by name.

Format: speculators 0.9.0 (github.com/vllm-project/speculators, `models/dflash/config.py`,
`convert/dflash/converter.py`); the shift as in vLLM's pull request 40727.
"""

from typing import Any

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.models.config_fields import Fields

_LAYER_FIELDS = ("layer_types", "use_sliding_window", "sliding_window", "max_window_layers")
"""older versions wrote these beside `transformer_layer_config`, newer ones inside it"""


def in_form_of_zlab(fields: Fields) -> Fields:
    """The same drafter's configuration with the fields of z-lab's checkpoints."""
    fields.expect("speculators_model_type", "dflash")
    fields.expect("sample_from_anchor", False)
    layers = fields.inside("transformer_layer_config")
    for level in (fields, layers):  # z-lab's; the library ignores them, so which holds is not known
        level.expect("dflash_config", None)
        level.expect("is_causal", None)
    fields.expect("target_hidden_size", layers.positive("hidden_size"))
    vocab, drafted = layers.positive("vocab_size"), fields.positive("draft_vocab_size")
    if drafted != vocab:
        raise CheckpointError(
            f"{fields.path}: draft_vocab_size is {drafted}, vocab_size {vocab}; a reduced draft "
            "vocabulary (d2t) is not supported: give a drafter with the whole vocabulary."
        )
    values = layers.values | _beside(fields, layers)
    return Fields(
        fields.path,
        values
        | {name: value for name, value in fields.values.items() if name not in values}
        | {
            "architectures": _architectures(fields),
            "block_size": fields.positive("block_size"),
            "mask_token_id": fields.get("mask_token_id", int),
            "target_layer_ids": _taps(fields),
            "is_causal": _is_causal(fields, values),
        },
    )


def _architectures(fields: Fields) -> Any:
    """A config alone names the speculator, one saved with its weights the model's class."""
    given = fields.values.get("architectures")
    return ["DFlashDraftModel"] if given == ["DFlashSpeculator"] else given


def _beside(fields: Fields, layers: Fields) -> dict[str, Any]:
    """Layer fields that stand beside `transformer_layer_config`; two places must not differ."""
    found: dict[str, Any] = {}
    for name in _LAYER_FIELDS:
        outside, inside = fields.values.get(name), layers.values.get(name)
        if outside is None:
            continue
        if inside is not None and inside != outside:
            raise CheckpointError(
                f"{fields.path}: field {name!r} is {shown(outside)} at the root and "
                f"{shown(inside)} in transformer_layer_config; leave the one that the drafter "
                "was trained with."
            )
        found[name] = outside
    return found


def _taps(fields: Fields) -> list[int]:
    name = "aux_hidden_state_layer_ids"
    ids: Any = fields.get(name, list)
    if not ids or not all(type(i) is int and i >= 1 for i in ids):
        raise CheckpointError(
            f"{fields.path}: {name} must list layers from 1 (1 is what comes out of the first "
            f"layer), got {shown(ids)}; what goes into the first layer cannot be tapped."
        )
    return [i - 1 for i in ids]


def _is_causal(fields: Fields, values: dict[str, Any]) -> bool | None:
    """Full layers always see the whole block; sliding ones as the flag says."""
    name = "sliding_window_non_causal"
    if fields.values.get(name) is not None:
        return False if fields.get(name, bool) else None
    types = values.get("layer_types")
    slides = isinstance(types, list) and "sliding_attention" in types
    if slides or values.get("use_sliding_window"):
        # the library's default is false, that of vLLM true
        raise CheckpointError(
            f"{fields.path}: field {name!r} is missing, but layers slide; set it to false if they "
            "were trained causal inside the block, to true if not."
        )
    return None
