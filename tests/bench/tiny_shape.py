# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A shape in the smallest sizes that the kernels take."""

from pathlib import Path

from hybridspec.bench.random_pair import Shape
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.target_config import TargetConfig
from tests.models.fused_cases import DRAFTER as FUSED_DRAFTER
from tests.models.fused_cases import TARGET as FUSED_TARGET
from tests.tiny import DRAFTER, TARGET, write_json

TOP = 2
SIZES = FUSED_TARGET | {
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": TOP,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
DRAFTS = FUSED_DRAFTER | {
    "vocab_size": 64,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "num_target_layers": 2,
    "dflash_config": {"mask_token_id": 60, "target_layer_ids": [1]},
}


def tiny_shape(directory: Path, *, block_size: int, **changes: int) -> Shape:
    """Its configurations pass through files, as those that ship."""
    for name, config in (
        ("target", TARGET | SIZES | changes),
        ("drafter", DRAFTER | DRAFTS | {"block_size": block_size}),
    ):
        directory.joinpath(name).mkdir()
        write_json(directory / name / "config.json", config)
    return Shape(
        name="tiny",
        target=TargetConfig.load(directory / "target"),
        drafter=DraftConfig.load(directory / "drafter"),
    )
