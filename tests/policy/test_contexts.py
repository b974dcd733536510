# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A table of several contexts: what is refused, and that it chooses as brute force does."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridspec.core.errors import TableError
from hybridspec.kernels import length as twin
from hybridspec.kernels.reference import length as reference
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Hybrid

KEY = {"device": "one", "mode": "exact"}
GOOD = {"seconds": {"8": [1.0, 2.0], "64": [2.0, 3.0]}, "plain": {"8": 0.5, "64": 0.6}}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seconds": {"8": [-1.0, 2.0], "64": [2.0, 3.0]}}, "from 1e-09"),
        ({"seconds": {"8": [1.0], "64": [2.0]}}, "1 timings"),
        ({"seconds": {"8": [float("nan"), 2.0], "64": [2.0, 3.0]}}, "nan"),
        ({"seconds": {"64": [2.0, 3.0], "8": [1.0, 2.0]}}, "contexts must rise"),
        ({"seconds": {"8": [1.0, 2.0], "08": [1.0, 2.0]}}, "contexts must rise"),
        ({"drft": {"8": 1.0, "64": 1.0}}, "'drft' is unknown"),
        ({"draft": {"8": 1.0}}, "'draft' must map"),
        ({"commit": {"8": 1.0, "64": -1.0}}, "from 1e-09"),
        ({"key": KEY | {"device": "two"}}, "another device"),
    ],
)
def test_a_profile_that_cannot_be_right_is_refused_by_name(tmp_path, change, named):
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({"key": KEY} | GOOD | change), encoding="utf-8")
    with pytest.raises(TableError, match=named) as error:
        Latency.load(path, key=KEY, rows=2)
    assert str(path) in str(error.value)


def test_a_profile_with_a_trailing_comma_is_refused_by_name(tmp_path):
    path = tmp_path / "latency.json"
    path.write_text('{"key": {},}', encoding="utf-8")
    with pytest.raises(TableError, match=r"latency\.json"):
        Latency.load(path, key=KEY, rows=2)


def test_parts_of_a_profile_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "latency.json"
    written = Latency.measured(
        {8: [1.0, 2.0], 64: [2.0, 3.0]},
        plain={8: 0.5, 64: 0.6},
        draft={8: 0.2, 64: 0.3},
        commit={8: 0.1, 64: 0.1},
    )
    written.save(path, key=KEY)
    assert Latency.load(path, key=KEY, rows=2) == written


@settings(max_examples=25)
@given(
    rows=st.integers(2, 16),
    contexts=st.lists(st.integers(1, 70_000), min_size=1, max_size=4, unique=True),
    context=st.integers(0, 90_000),
    seed=st.integers(0, 2**16),
)
def test_the_length_at_a_context_is_that_of_brute_force_on_the_table(rows, contexts, context, seed):
    gen = torch.Generator().manual_seed(seed)
    raw = torch.rand(len(contexts), rows, generator=gen).add(0.1).tolist()
    latency = Latency.measured(
        dict(zip(contexts, raw, strict=True)), plain=dict.fromkeys(contexts, 0.1)
    )
    log_odds = torch.randn(rows - 1, generator=gen) * 2
    length = torch.tensor(context, dtype=torch.int32)
    budget, is_done = torch.tensor(99, dtype=torch.int32), torch.tensor(False)
    chosen: list[int] = []
    for choose in (reference.choose, twin.choose):
        hybrid = Hybrid(acceptance=Acceptance.uninformed(rows - 1), latency=latency)
        hybrid.state.tokens.fill_(3.0)
        hybrid.state.seconds.fill_(2.0)
        n, _ = choose(log_odds, hybrid.tables, hybrid.state, length, budget, is_done)
        chosen.append(int(n))
    survival = torch.sigmoid(log_odds.double()).cumprod(0)
    gains = [
        1 + float(survival[: n - 1].sum()) - 1.5 * latency.drafted_at(context, rows=n)
        for n in range(1, rows + 1)
    ]
    for n in chosen:
        assert gains[n - 1] >= max(gains) - 1e-5
    times = [latency.drafted_at(context, rows=n) for n in range(1, rows + 1)]
    assert times == sorted(times)
