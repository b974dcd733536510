# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.kernels.reference.head import (
    LOG_ODDS_LIMIT,
    draft_head,
    draft_head_scaled,
    read_head,
    read_head_scaled,
)

D, V = 24, 97


def random_head(seed=0, rows=16):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(rows, D, generator=gen), torch.randn(V, D, generator=gen)


def test_tokens_and_gaps_equal_a_sort_in_float64():
    x, weight = random_head()
    tokens, gaps = read_head(x, weight)
    best = (x.double() @ weight.double().T).sort(-1, descending=True)
    assert torch.equal(tokens, best.indices[:, 0])
    assert torch.allclose(gaps.double(), best.values[:, 0] - best.values[:, 1], atol=1e-5)


def test_the_lowest_index_wins_a_tie():
    x, weight = random_head()
    top = int((x[0] @ weight.T).argmax())
    weight = weight.roll(40 - top, dims=0)  # the best of row 0 now stands at 40
    for twin in (3, 96):
        weight[twin] = weight[40]
    tokens, gaps = read_head(x, weight)
    assert int(tokens[0]) == 3
    assert float(gaps[0]) == 0


@pytest.mark.parametrize("rows", range(1, 17))
def test_the_lowest_index_wins_whatever_the_number_of_rows(rows):
    """Small whole numbers: sums are exact in any order, and ties are many."""
    gen = torch.Generator().manual_seed(rows)
    x = torch.randint(-1, 2, (rows, D), generator=gen).float()
    weight = torch.randint(-1, 2, (V, D), generator=gen).float()
    weight[V // 2 :] = weight[: V - V // 2].clone()  # whoever is best, another is as good
    tokens, gaps = read_head(x, weight)
    logits = (x @ weight.T).tolist()
    assert tokens.tolist() == [row.index(max(row)) for row in logits]
    assert (gaps == 0).all()
    assert (tokens < V // 2).all()


def test_the_mask_is_never_drafted():
    x, weight = random_head()
    mask = 11
    weight[mask] = 100 * x.mean(0)
    x = x + x.mean(0)  # the mask's logit is by far the largest in every row
    assert ((x @ weight.T).argmax(-1) == mask).all()
    tokens, log_odds = draft_head(x, weight, mask)
    rest = torch.cat((weight[:mask], weight[mask + 1 :])).double()
    want = (x.double() @ rest.T).softmax(-1).max(-1)
    assert torch.equal(tokens, want.indices + (want.indices >= mask))
    odds = (want.values / (1 - want.values)).log()
    inside = odds < 30  # beyond it 1 - p has no digits left in float64
    assert inside.sum() > 4
    assert torch.allclose(log_odds.double()[inside], odds[inside], atol=1e-4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_log_odds_are_clamped(scale):
    x, weight = random_head()
    _, log_odds = draft_head(x * scale, weight, 0)
    assert log_odds.abs().max() <= LOG_ODDS_LIMIT
    assert not log_odds.isnan().any()


def test_equal_rows_give_equal_tokens_wherever_they_stand():
    x, weight = random_head()
    want = read_head(x, weight)
    for place in range(16):
        moved = torch.zeros_like(x)
        moved[place] = x[5]
        tokens, gaps = read_head(moved, weight)
        assert int(tokens[place]) == int(want[0][5])
        assert float(gaps[place]) == float(want[1][5])


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_a_scaled_head_is_a_head_behind_the_final_norm(rows):
    x, weight = random_head()
    norm = torch.rand(D, generator=torch.Generator().manual_seed(1))
    squares = torch.stack([part.square().sum(-1) for part in x.split(8, dim=1)], dim=1)
    normed = torch.nn.functional.rms_norm(x, (D,), norm, 1e-6)
    given, count = (x * norm).clone(), torch.tensor(rows, dtype=torch.int32)
    given[rows:], squares[rows:] = torch.nan, torch.nan
    pairs = (
        (read_head_scaled(given, squares, weight, count, 1e-6), read_head(normed, weight)),
        (
            draft_head_scaled(given, squares, weight, count, 3, 1e-6),
            draft_head(normed, weight, 3),
        ),
    )
    for found, wanted in pairs:
        assert torch.equal(found[0][:rows], wanted[0][:rows])
        assert torch.allclose(found[1][:rows], wanted[1][:rows], atol=1e-4)
