# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The worlds of the 35B shape as traces, and the cost of their rounds."""

import pytest
import torch

from benchmarks.world_replay import costs_of, trace_of
from hybridspec.bench.ground import Costs
from hybridspec.bench.random_pair import Shape
from hybridspec.bench.worlds import draw_acceptances

SHAPE, P = "qwen3.6-35b-a3b", 60


@pytest.fixture(scope="module")
def trace():
    return trace_of(Shape.load(SHAPE), "mixed", 0.4, 0.8, P)


def test_a_row_has_the_experts_of_its_position_whatever_block_it_is_in(trace):
    assert trace.experts.shape == (P, 16, 40, 8)
    for row in (1, 5, 15):
        assert torch.equal(trace.experts[: P - row, row], trace.experts[row:, 0])


def test_drafts_are_accepted_as_in_the_engine_s_benchmark(trace):
    drawn = draw_acceptances("mixed", positions=P, drafts=15)
    for place in range(P):
        right = drawn.accepted[place].tolist()
        assert int(trace.accepted[place]) == [*right, False].index(False)
    assert torch.equal(trace.log_odds, drawn.log_odds)


def test_costs_are_those_that_made_the_rounds():
    """From a run whose rounds take exactly what the model says."""
    true = Costs(step=1.7e-3, draft=0.8e-3, row=2e-5, expert=1.7e-6)
    experts = {"plain": 8.0, "fixed:4": 22.0, "fixed:16": 71.0}

    def arm(name, rows):
        seconds = true.step + true.row * rows + true.expert * 40 * experts[name]
        seconds += 0.0 if name == "plain" else true.draft
        return {
            "name": name,
            "experts_a_layer": experts[name],
            "ms_per_round": {"median": 1e3 * seconds},
        }

    prices = {"seconds_per_row": true.row, "seconds_per_expert": true.expert, "layers": 40}
    run = {
        "latency": {"routing": prices},
        "arms": [arm("plain", 1), arm("fixed:4", 4), arm("fixed:16", 16)],
    }
    found = costs_of(run)
    for name in ("step", "draft", "row", "expert"):
        assert getattr(found, name) == pytest.approx(getattr(true, name))
