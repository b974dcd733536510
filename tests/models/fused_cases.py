# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A target and a drafter in sizes that the kernels take, and the same two in launches."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridspec.core.options import Mode
from hybridspec.core.records import Reading
from hybridspec.kernels import attention
from hybridspec.kernels.launch import INTERPRETED
from hybridspec.models.dflash import Drafter
from hybridspec.models.fused import FusedState, FusedTarget
from hybridspec.models.fused_draft import FusedDrafter
from hybridspec.models.state import TargetState
from hybridspec.models.target import Target
from tests.decoding import load, load_draft, load_tapped
from tests.tiny import write_drafter, write_target

TARGET: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    # 16 programs of experts a layer instead of 48: the interpreter takes 25 ms for each
    "num_experts": 6 if INTERPRETED else 10,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16 if INTERPRETED else 32,
    "shared_expert_intermediate_size": 32 if INTERPRETED else 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
DRAFTER: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_target_layers": 3,
    "dflash_config": {"mask_token_id": 257, "target_layer_ids": [0, 2]},
}
LAYERS = {
    "experts everywhere": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"]
    },
    "a dense layer first": {
        "family": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_only_layers": [0],
        "intermediate_size": 96,
        "norm_topk_prob": False,
    },
}


@pytest.fixture
def few_programs(monkeypatch):
    """In the interpreter as many splits of attention as a small cache has work for."""
    if INTERPRETED:
        monkeypatch.setattr(attention, "PROGRAMS", 8)


@dataclass(frozen=True)
class Twins:
    """The reference, in float32 on the CPU with weights of the other's dtype, and the launches."""

    reference: Target
    fused: FusedTarget

    def states(self, positions: int) -> tuple[TargetState, FusedState]:
        """Empty ones."""
        plain = TargetState.empty(self.reference.config, positions, torch.device("cpu"))
        return plain, self.fused.empty_state(positions)


def twins(directory: Path, device: str, dtype: torch.dtype, mode: Mode, layers: str) -> Twins:
    """Every layer is tapped."""
    reference = load_tapped(write_target(directory, **TARGET, **LAYERS[layers]), mode=mode)
    fused = FusedTarget.of(reference, mode=mode, dtype=dtype, device=torch.device(device))
    return Twins(reference, fused)


def drafters(
    directory: Path, device: str, dtype: torch.dtype, **changes: Any
) -> tuple[Drafter, FusedDrafter]:
    """A drafter and the same in launches."""
    directory.joinpath("target").mkdir()
    shape = TARGET | LAYERS["experts everywhere"]
    target = load(write_target(directory / "target", **shape), taps=(0, 2))
    drafter = load_draft(write_drafter(directory / "drafter", **(DRAFTER | changes)), target)
    embedding, head = (x.to(device, dtype) for x in (target.embedding, target.head))
    return drafter, FusedDrafter.of(drafter, embedding=embedding, head=head)


def read(target: Target | FusedTarget, tokens: list[int], rows: int, state: TargetState) -> Reading:
    """Read the first `rows` of a block of known tokens; nothing is committed."""
    device = state.length.device
    count = torch.tensor(rows, dtype=torch.int32, device=device)
    block = torch.tensor(tokens, device=device)
    return target.read_on(target.read_to_router(block, count, state), count, state)


def commit(state: TargetState, rows: int) -> None:
    count = torch.tensor(rows, dtype=torch.int32, device=state.length.device)
    state.commit(count)
    state.length.add_(count)
