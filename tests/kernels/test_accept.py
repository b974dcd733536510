# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.accept import accept_greedy


def call(block, target, rows, stop_ids=(), budget=1000):
    accepted, is_done = accept_greedy(
        torch.tensor(block),
        torch.tensor(target),
        torch.tensor(rows, dtype=torch.int32),
        torch.tensor(stop_ids, dtype=torch.int64),
        torch.tensor(budget, dtype=torch.int32),
    )
    assert accepted.dtype == torch.int32
    assert is_done.dtype == torch.bool
    return int(accepted), bool(is_done)


def by_hand(block, target, rows, stop_ids, budget):
    """Plain decoding that looks the block up: emit one token after the other."""
    emitted = []
    for row in range(rows):
        emitted.append(target[row])
        if target[row] in stop_ids or len(emitted) == budget:
            return len(emitted) - 1, True
        if row + 1 == rows or block[row + 1] != target[row]:
            break
    return len(emitted) - 1, False


@settings(max_examples=600)
@given(
    data=st.data(),
    size=st.integers(1, MAX_ROWS),
    vocab=st.integers(1, 4),
    stop_ids=st.lists(st.integers(0, 5), max_size=2),
    budget=st.integers(1, 20),
)
def test_acceptance_equals_plain_decoding_token_by_token(data, size, vocab, stop_ids, budget):
    tokens = st.lists(st.integers(0, vocab - 1), min_size=size, max_size=size)
    block, target = data.draw(tokens), data.draw(tokens)
    rows = data.draw(st.integers(1, size))
    found = call(block, target, rows, stop_ids, budget)
    assert found == by_hand(block, target, rows, stop_ids, budget)


@pytest.mark.parametrize("place", range(MAX_ROWS))
def test_a_stop_id_ends_the_block_where_it_stands(place):
    target = list(range(100, 116))
    perfect = [99, *target[:-1]]
    assert call(perfect, target, MAX_ROWS, stop_ids=(7, 100 + place)) == (place, True)
    assert call(perfect, target, MAX_ROWS) == (MAX_ROWS - 1, False)


@pytest.mark.parametrize("budget", range(1, MAX_ROWS + 2))
def test_the_budget_is_never_exceeded(budget):
    target = list(range(100, 116))
    accepted, is_done = call([99, *target[:-1]], target, MAX_ROWS, budget=budget)
    assert accepted + 1 == min(budget, MAX_ROWS)
    assert is_done == (budget <= MAX_ROWS)


def test_what_lies_beyond_the_rows_is_not_seen():
    target = list(range(100, 116))
    stale = [99, *target[:-1]]
    assert call(stale, target, 4, stop_ids=(104,)) == (3, False)
    assert call(stale, target, 5, stop_ids=(104,)) == (4, True)


def test_a_stop_id_as_anchor_or_wrong_draft_stops_nothing():
    assert call([7, 7, 5], [1, 2, 3], 3, stop_ids=(7,)) == (0, False)
