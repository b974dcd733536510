# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Bytes that a round needs, against the tensors that there are."""

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.bench.bytes import BF16, draft_bytes, expert_bytes, fixed_bytes
from hybridspec.bench.random_weights import random_drafter, random_target
from hybridspec.models.fused_layers import FusedMoe
from hybridspec.models.target import GdnMixer
from tests.bench.tiny_shape import tiny_shape

CPU, PAGE = torch.device("cpu"), 128


def numel(*tensors):
    return sum(tensor.numel() for tensor in tensors)


@pytest.fixture
def models(tmp_path):
    # 2 x 8 rows of gates: no projection is padded to a multiple of 16
    shape = tiny_shape(tmp_path, block_size=4, linear_num_value_heads=8)
    taps = shape.drafter.target_layer_ids
    target = random_target(
        shape.target, mode="fast", taps=taps, device=CPU, dtype=torch.float32, positions=256
    )
    return shape, target, random_drafter(shape.drafter, target, positions=256)


def test_a_pass_needs_every_weight_but_the_experts_and_the_states(models):
    shape, target, _ = models
    state, weights, experts = target.empty_state(PAGE - 16), numel(target.head), 0
    for layer in target.layers:
        weights += numel(layer.mixer.in_proj, layer.mixer.out_proj)
        assert isinstance(layer.mlp, FusedMoe)
        E = shape.target.num_experts
        weights += numel(layer.mlp.router, layer.mlp.gate_up[E:], layer.mlp.down[E:])
        experts += numel(layer.mlp.gate_up[:E], layer.mlp.down[:E])
    assert sum(isinstance(layer.mixer, GdnMixer) for layer in target.layers) == 1
    needed = BF16 * weights + 4 * numel(state.recurrent)
    assert fixed_bytes(shape.target, 0) == needed
    cache = BF16 * numel(state.keys, state.values)
    assert fixed_bytes(shape.target, PAGE) == needed + cache
    assert expert_bytes(shape.target) * len(target.layers) * E == BF16 * experts


def test_a_draft_needs_every_weight_and_the_context(models):
    shape, _, drafter = models
    weights = numel(drafter.fc, drafter.context, drafter.head)
    for layer in drafter.layers:
        weights += numel(layer.in_proj, layer.o_proj, layer.gate_up, layer.down)
    state = drafter.empty_state(PAGE - 16)
    assert draft_bytes(shape.drafter, 0) == BF16 * weights
    cache = BF16 * numel(state.keys, state.values)
    assert draft_bytes(shape.drafter, PAGE) == BF16 * weights + cache
