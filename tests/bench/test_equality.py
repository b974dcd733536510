# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The long comparison of `make equality`: what it counts, and that it can fail."""

import json
import sys

import pytest

from benchmarks import equality
from hybridspec import LLM, SamplingParams
from tests.decoding import write_twins
from tests.tiny import write_drafter

PROMPTS, FEW = ["def area(r):\n", "x"], SamplingParams(max_new_tokens=40)


@pytest.fixture
def twins(tmp_path):
    """A pair of blocks of three rows, in which every token nearly ties with another."""
    target = write_twins(tmp_path / "target", seed=0, spread=1e-7)
    drafter = write_drafter(tmp_path / "drafter", block_size=3)
    return LLM(target, draft_model=drafter)


def test_gaps_are_counted_by_powers_of_ten():
    gaps = [0.0, 9e-8, 1e-7, 5e-6, 1e-3, 0.99e-3, 12.0]
    found = equality.histogram(gaps)
    assert list(found) == ["<1e-7", "<1e-6", "<1e-5", "<1e-4", "<1e-3", ">=1e-3"]
    assert list(found.values()) == [2, 1, 1, 0, 1, 2]


def test_every_divergence_has_plain_decodings_own_gap(twins):
    found = {mode: equality.compare(twins, PROMPTS, FEW, mode) for mode in ("exact", "fast")}
    for run in found.values():
        assert run["arms"].keys() == {"fixed:1", "fixed:2", "fixed:3", "hybrid"}
        assert sum(run["plain_gaps"].values()) == len(PROMPTS) * FEW.max_new_tokens
        assert run["plain_gaps"][">=1e-3"] < FEW.max_new_tokens
        for arm in run["arms"].values():
            assert arm["texts"] == len(PROMPTS)
            assert sum(arm["gaps"].values()) == len(arm["divergences"])
    assert equality.gaps_of(found["exact"]["arms"]) == []
    gaps = equality.gaps_of(found["fast"]["arms"])
    assert gaps
    assert max(gaps) < equality.GAP_LIMIT


def test_a_text_that_only_ends_elsewhere_is_a_fault():
    assert equality.first_difference((1, 2, 3), (1, 4)) == 1
    with pytest.raises(AssertionError, match="fault"):
        equality.first_difference((1, 2, 3), (1, 2))


@pytest.mark.parametrize(
    ("mode", "gap", "code"), [("exact", 1e-9, 1), ("fast", 1e-3, 1), ("fast", 0.9e-3, 0)]
)
def test_the_exit_code_says_whether_the_promise_holds(monkeypatch, tmp_path, mode, gap, code):
    def compare(llm, prompts, params, of):
        parted = [{"prompt": 0, "place": 3, "gap": gap}] if of == mode else []
        return {"plain_gaps": {}, "arms": {"hybrid": {"texts": 1, "divergences": parted}}}

    monkeypatch.setattr(equality, "compare", compare)
    output = tmp_path / "results" / "equality.json"
    monkeypatch.setattr(sys, "argv", ["equality.py", "--prompts", "1", "--output", str(output)])
    assert equality.main() == code
    result = json.loads(output.read_text(encoding="utf-8"))
    assert (result["exact_differences"], result["fast_divergences"]) == (
        (1, 0) if mode == "exact" else (0, 1)
    )
    assert result["fast_largest_gap"] == (None if mode == "exact" else gap)
