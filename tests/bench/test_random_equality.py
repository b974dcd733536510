# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The benchmark of equality in a real shape, over the plain models in sizes of a test."""

import pytest
import torch

from benchmarks.random_equality import ARMS, compared
from tests.decoding import load, load_draft
from tests.tiny import write_drafter, write_target

CONTEXT, TOKENS = 20, 40


@pytest.fixture
def pair(tmp_path):
    target = load(write_target(tmp_path / "target"))
    return target, load_draft(write_drafter(tmp_path / "drafter", block_size=16), target)


@torch.inference_mode()
def test_spoiled_drafts_are_accepted_and_rejected_and_change_nothing(pair):
    found = list(compared(*pair, prompts=1, context=CONTEXT, tokens=TOKENS))
    assert [one["rows"] for one in found] == list(ARMS)
    for one in found:
        assert one["first_difference"] is None
        assert one["tokens"] == TOKENS
        if one["rows"] == "hybrid":
            assert one["drafts_accepted"] > 0
        elif one["rows"] > 1:
            assert 0 < one["drafts_accepted"] < (one["rows"] - 1) * one["rounds"]
