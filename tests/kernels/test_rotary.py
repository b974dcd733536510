# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import math

import torch

from hybridspec.kernels.reference.rotary import Yarn, rotary_table, rotate, yarn_table
from tests.tolerances import OPERATION, distance

DIMS, HEAD, THETA = 8, 20, 10000.0


def rows(count, seed=0):
    return torch.randn(count, 3, HEAD, generator=torch.Generator().manual_seed(seed))


def table(positions=600):
    return rotary_table(DIMS, THETA, positions, torch.device("cpu"))


def test_pairs_turn_by_position_times_frequency():
    x, start = rows(5), 40
    want = x.double().clone()
    for row in range(5):
        for j in range(DIMS // 2):
            turn = (start + row) / THETA ** (2 * j / DIMS)
            left, right = x[row, :, j].double(), x[row, :, j + DIMS // 2].double()
            want[row, :, j] = left * math.cos(turn) - right * math.sin(turn)
            want[row, :, j + DIMS // 2] = right * math.cos(turn) + left * math.sin(turn)
    found = rotate(x, table()[start : start + 5])
    assert distance(found, want) < OPERATION
    assert torch.equal(found[..., DIMS:], x[..., DIMS:])


def test_position_zero_turns_nothing():
    assert torch.equal(rotate(rows(1), table()[:1]), rows(1))


def test_a_score_depends_on_the_distance_alone():
    q, k = rows(1), rows(1, seed=1)
    scores = [
        (rotate(q, table()[p + 7 : p + 8]) * rotate(k, table()[p : p + 1])).sum(-1)
        for p in (0, 100, 500)
    ]
    for score in scores[1:]:
        assert torch.allclose(score, scores[0], atol=1e-4)


def test_a_row_of_the_table_does_not_depend_on_its_length():
    assert torch.equal(table(17), table(600)[:17])


def test_yarn_keeps_what_turns_often_and_slows_what_turns_rarely():
    """tests/models/test_draft_config.py holds the whole table against Transformers."""
    yarn = Yarn(factor=10.0, original_max_position_embeddings=200, beta_fast=20.0, scale=1.5)
    found = yarn_table(DIMS, THETA, 600, torch.device("cpu"), yarn=yarn)
    assert torch.equal(found[:, :, 0], 1.5 * table()[:, :, 0])
    assert torch.allclose(found[::10, :, -1], 1.5 * table()[:60, :, -1], atol=1e-6)


def test_yarn_of_factor_one_changes_nothing():
    yarn = Yarn(factor=1.0, original_max_position_embeddings=600, scale=1.0)
    found = yarn_table(DIMS, THETA, 600, torch.device("cpu"), yarn=yarn)
    assert torch.allclose(found, table(), atol=1e-4)
