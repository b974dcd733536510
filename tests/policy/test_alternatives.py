# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Each rule against the numbers that it should give by hand."""

import pytest
import torch

from hybridspec.policy.alternatives import (
    Always,
    Look,
    MovingAverage,
    Ratio,
    Threshold,
    TrueCost,
)


def look(survival, seconds, true_seconds=None):
    block = len(seconds)
    return Look(
        context=0,
        left=100,
        log_odds=torch.zeros(block - 1),
        router=torch.zeros(block, 1, dtype=torch.int16),
        survival=survival,
        seconds=seconds,
        true_seconds=true_seconds or seconds,
    )


@pytest.mark.parametrize(("least", "rows"), [(0.95, 1), (0.9, 1), (0.5, 3), (0.2, 4), (0.0, 4)])
def test_threshold_reads_the_drafts_that_survive_with_more(least, rows):
    assert Threshold(least).rows(look([0.9, 0.6, 0.3], [1.0] * 4)) == rows


def test_ratio_looks_past_a_step_of_the_cost_and_takes_the_shorter_of_equals():
    assert Ratio().rows(look([0.9, 0.9, 0.9], [1.0, 2.0, 2.0, 2.0])) == 4
    assert Ratio().rows(look([1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0])) == 1


def test_moving_average_reads_one_draft_more_than_were_accepted():
    rule, own = MovingAverage(share=0.5), look([0.5] * 7, [1.0] * 8)
    rule.begin()
    assert rule.rows(own) == 8
    rule.see(own, 8, 5)
    assert rule.rows(own) == 6
    rule.see(own, 6, 1)
    assert rule.rows(own) == 4
    rule.begin()
    assert rule.rows(own) == 8


def test_true_cost_chooses_by_this_blocks_seconds_and_learns_the_rate():
    rule = TrueCost(0.5)
    rule.begin()
    own = look([0.9, 0.5, 0.1], [1.0, 1.0, 1.0, 1.0], [1.0, 1.1, 4.0, 9.0])
    assert rule.rows(own) == 2
    rule.see(own, 2, 2)
    assert rule.tokens == pytest.approx(0.5 * 1.9 + 2)
    assert rule.seconds == pytest.approx(0.5 * 1.1 + 1.1)


def test_always_reads_its_number():
    assert [Always(n).rows(look([0.5], [1.0, 1.0])) for n in (0, 2)] == [0, 2]
