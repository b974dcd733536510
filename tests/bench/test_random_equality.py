# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The benchmark of equality in a real shape, at sizes of a test."""

import pytest
import torch

pytest.importorskip("triton")

from benchmarks.random_equality import LENGTHS, compared
from hybridspec.bench.random_weights import random_drafter, random_target
from tests.bench.tiny_shape import tiny_shape

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
CONTEXT, TOKENS = 20, 24


@pytest.fixture
def pair(tmp_path):
    shape, device = tiny_shape(tmp_path, block_size=16), torch.device("cpu")
    taps, positions = shape.drafter.target_layer_ids, 128
    target = random_target(
        shape.target,
        mode="exact",
        taps=taps,
        device=device,
        dtype=torch.float32,
        positions=positions,
    )
    return target, random_drafter(shape.drafter, target, positions=positions)


@torch.inference_mode()
def test_spoiled_drafts_are_accepted_and_rejected_and_change_nothing(pair):
    found = list(compared(*pair, prompts=1, context=CONTEXT, tokens=TOKENS))
    assert [one["rows"] for one in found] == list(LENGTHS)
    for one in found:
        assert one["first_difference"] is None
        assert one["tokens"] == TOKENS
        if one["rows"] > 1:
            assert 0 < one["drafts_accepted"] < (one["rows"] - 1) * one["rounds"]
