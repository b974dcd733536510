# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How well chances fit what came of them."""

import json

import pytest
import torch

from hybridspec.kernels.reference.acceptance import BINS, AcceptanceState, adapt
from hybridspec.policy.calibration import AcceptanceReport, area, calibration_error


def histogram(**counts):
    found = torch.zeros(BINS, dtype=torch.int32)
    for name, count in counts.items():
        found[int(name[1:])] = count
    return found


@pytest.mark.parametrize(
    ("wrong", "right", "wanted"),
    [
        ({"b1": 3}, {"b9": 4}, 1.0),
        ({"b9": 3}, {"b1": 4}, 0.0),
        ({"b5": 3}, {"b5": 7}, 0.5),
        ({"b1": 1, "b5": 1}, {"b5": 1, "b9": 1}, (1 + 0.5 + 1 + 1) / 4),
        ({}, {"b5": 7}, None),
        ({"b5": 7}, {}, None),
    ],
)
def test_the_area_counts_pairs_in_order(wrong, right, wanted):
    assert area(histogram(**wrong), histogram(**right)) == wanted


def test_the_calibration_error_is_weighed_by_survivals():
    sums = torch.zeros(2, BINS)
    sums[:, 3], sums[:, 9] = torch.tensor([3.0, 5.0]), torch.tensor([9.0, 8.0])
    assert calibration_error(sums, 30) == pytest.approx(3 / 30)
    assert calibration_error(sums, 0) is None


def test_a_report_tells_loaded_from_learnt():
    """Drafts that are right half of the time, loaded as nearly sure."""
    state = AcceptanceState.begun(0.0, (3.0,) * 4, warm_up=0, device=torch.device("cpu"))
    gen, five = torch.Generator().manual_seed(0), torch.tensor(5, dtype=torch.int32)
    for _ in range(400):
        right = torch.rand(4, generator=gen) < 0.5
        committed = right.int().cumprod(0).sum(dtype=torch.int32) + 1
        odds, no = torch.randn(4, generator=gen), torch.tensor(False)
        adapt(odds, five, five, committed, no, five, torch.ones(5), state)
    report = AcceptanceReport.of(state)
    assert report.survivals == 1600
    assert report.labels == int(state.labels[0].sum()) == int(state.labels[1].sum())
    assert report.loaded.calibration_error > 0.3
    assert report.learnt.calibration_error < 0.1
    assert not report.reads_whole_blocks
    assert len(report.learnt.auc) == len(report.intercepts) == 4
    assert json.loads(json.dumps(report.to_json()))["labels"] == report.labels


def test_a_report_of_nothing_has_no_figures():
    state = AcceptanceState.begun(1.0, (0.0,) * 2, warm_up=5, device=torch.device("cpu"))
    report = AcceptanceReport.of(state)
    assert report.loaded.calibration_error is None
    assert report.learnt.auc == (None, None)
    assert report.reads_whole_blocks
