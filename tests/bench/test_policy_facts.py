# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What benchmarks/policy_facts.py counts, against counting by hand."""

import pytest
import torch

from benchmarks import policy_facts
from hybridspec.bench.trace import Trace


def trace(*texts):
    """Of (class, tokens) texts; blocks of three rows, everything else drawn."""
    gen, P = torch.Generator().manual_seed(3), sum(len(tokens) for _, tokens in texts)
    lengths = torch.tensor([0] + [len(tokens) for _, tokens in texts])
    return Trace(
        key={"target": "t", "drafter": "d"},
        classes=tuple(name for name, _ in texts),
        begins=lengths.cumsum(0),
        prompts=torch.full((len(texts),), 9),
        budgets=torch.full((len(texts),), 1000),
        tokens=torch.tensor([t for _, tokens in texts for t in tokens], dtype=torch.int32),
        accepted=torch.randint(3, (P,), generator=gen, dtype=torch.uint8),
        log_odds=torch.randn(P, 2, generator=gen),
        experts=torch.randint(8, (P, 3, 2, 2), generator=gen, dtype=torch.int16),
        seconds=torch.rand(P, 3, generator=gen),
    )


def test_auc_is_the_share_of_pairs_in_order():
    gen = torch.Generator().manual_seed(1)
    score = torch.randint(5, (60,), generator=gen).float()
    right = torch.rand(60, generator=gen) < 0.5
    pairs = [(a > b) + 0.5 * (a == b) for a in score[right] for b in score[~right]]
    assert policy_facts.auc(score, right) == pytest.approx(float(sum(pairs) / len(pairs)))
    assert policy_facts.auc(score, torch.ones(60, dtype=torch.bool)) is None


def test_calibration_error_is_0_for_true_chances_and_their_distance_for_wrong_ones():
    right = torch.arange(400) % 4 == 0
    assert policy_facts.calibration_error(torch.full((400,), 0.25), right) == pytest.approx(0)
    assert policy_facts.calibration_error(torch.full((400,), 0.75), right) == pytest.approx(0.5)


def test_a_draft_has_a_label_where_those_before_it_were_right():
    labelled, right = policy_facts.reached(torch.tensor([0, 1, 2], dtype=torch.uint8), 2)
    assert labelled.tolist() == [[True, False], [True, True], [True, True]]
    assert right.tolist() == [[False, False], [True, False], [True, True]]


def test_text_that_loops_is_left_out_from_where_it_loops():
    whole = trace(("a", list(range(60))), ("b", list(range(40)) + [1, 2] * 40), ("c", [7] * 9))
    kept = policy_facts.without_loops(whole)
    assert kept.classes == ("a", "b", "c")
    lengths = kept.begins.diff().tolist()
    assert lengths[0] == 60
    assert 40 <= lengths[1] < 120
    assert lengths[2] == 9
    for name in ("tokens", "accepted", "log_odds", "experts"):
        both = getattr(kept, name)[-9:], getattr(whole, name)[-9:]
        assert torch.equal(*both), name


def test_classes_part_and_join_again():
    whole = trace(("a", [1, 2, 3]), ("b", [4, 5]), ("a", [6]))
    parts = [policy_facts.of_class(whole, name) for name in ("a", "b")]
    assert [part.tokens.tolist() for part in parts] == [[1, 2, 3, 6], [4, 5]]
    again = policy_facts.joined(parts)
    assert again.begins.tolist() == [0, 3, 4, 6]
    assert again.classes == ("a", "a", "b")
    assert again.tokens.tolist() == [1, 2, 3, 6, 4, 5]
