# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.router import drop_rows, route, route_by_probability
from tests.tolerances import OPERATION, distance

levels = st.lists(
    st.lists(st.integers(-3, 3), min_size=8, max_size=8), min_size=1, max_size=MAX_ROWS
)


@given(levels=levels, k=st.integers(1, 8))
def test_the_lowest_index_wins_every_tie(levels, k):
    ids, weights = route(torch.tensor(levels, dtype=torch.float32), k)
    for row, logits in enumerate(levels):
        best = sorted(range(8), key=lambda i: (-logits[i], i))[:k]
        assert ids[row].tolist() == best
        shares = torch.tensor(logits, dtype=torch.float64).softmax(0)[best]
        assert distance(weights[row], shares / shares.sum()) < OPERATION


@given(levels=levels, k=st.integers(1, 8))
def test_weights_sum_to_one(levels, k):
    _, weights = route(torch.tensor(levels) * 9.0, k)
    assert torch.allclose(weights.sum(-1), torch.ones(len(levels)), atol=1e-6, rtol=0)
    assert (weights >= 0).all()


@given(levels=levels, k=st.integers(1, 8))
def test_weights_by_probability_are_the_softmax_of_the_same_experts(levels, k):
    logits = torch.tensor(levels, dtype=torch.float32)
    ids, weights = route_by_probability(logits, k)
    assert torch.equal(ids, route(logits, k)[0])
    assert distance(weights, logits.double().softmax(-1).gather(1, ids)) < OPERATION


def test_equal_rows_are_routed_alike_wherever_they_stand():
    gen = torch.Generator().manual_seed(0)
    row = torch.randn(32, generator=gen)
    row[[3, 17, 30]] = row.max() + 1  # exact ties at the boundary of k = 2
    for place in range(MAX_ROWS):
        logits = torch.randn(MAX_ROWS, 32, generator=gen)
        logits[place] = row
        ids, weights = route(logits, 2)
        alone, shares = route(row.repeat(MAX_ROWS, 1), 2)
        assert ids[place].tolist() == [3, 17]
        assert torch.equal(ids[place], alone[0])
        assert torch.equal(weights[place], shares[0])


@given(levels=levels, rows=st.integers(0, MAX_ROWS))
def test_dropped_rows_choose_nothing(levels, rows):
    ids, _ = route(torch.tensor(levels, dtype=torch.float32), 3)
    kept = drop_rows(ids, rows)
    assert torch.equal(kept[:rows], ids[:rows])
    assert (kept[rows:] == -1).all()
