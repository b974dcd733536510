# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import head
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import head as reference
from tests.kernels.gdn_cases import EVERY_DTYPE, EVERYWHERE, counts

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

D, V, PARTS, EPS, MASK = 64, 150, 3, 1e-6, 140
"""150 words are three tiles of 64, the last of them 22 words"""


@pytest.fixture(autouse=True, params=[False, True], ids=["rows-left", "weight-left"])
def launch(request, monkeypatch):
    """Tiles that fit the small sizes, with either operand on the left."""
    small = replace(head.HEAD, words=64, depth=32, is_transposed=request.param)
    monkeypatch.setattr(head, "HEAD", small)


def problem(device, dtype, seed=0, words=V, is_whole=False):
    """x, squares of another stream, and a weight; whole numbers make every sum exact."""
    gen = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(MAX_ROWS, D, generator=gen), torch.randn(words, D, generator=gen)
    if is_whole:
        x, weight = (x * 2).round(), weight.round()
    squares = torch.rand(MAX_ROWS, PARTS, generator=gen) * D
    return x.to(dtype).to(device), squares.to(device), weight.to(dtype).to(device)


def read(x, squares, weight, rows=MAX_ROWS):
    return head.read_head_scaled(x, squares, weight, counts(rows, x.device), EPS)


def draft(x, squares, weight, rows=MAX_ROWS, mask=MASK):
    return head.draft_head_scaled(x, squares, weight, counts(rows, x.device), mask, EPS)


def judged(x, squares, weight, mask=None):
    """Tokens and margins of all rows in float64."""
    rows = counts(MAX_ROWS, x.device)
    exact = x.double(), squares.double(), weight.double(), rows
    if mask is None:
        return reference.read_head_scaled(*exact, EPS)
    return reference.draft_head_scaled(*exact, mask, EPS)


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize("words", [64, 65, 128, V])
def test_tokens_and_gaps_equal_float64(device, dtype, words):
    given = problem(device, dtype, seed=words, words=words)
    tokens, gaps = read(*given)
    wanted, distances = judged(*given)
    assert torch.equal(tokens, wanted)
    assert tokens.dtype == torch.int64
    assert torch.allclose(gaps.double(), distances, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize("words", [65, 128, V])
@pytest.mark.parametrize("scale", [1e-2, 1.0])
def test_drafts_and_log_odds_equal_float64(device, dtype, words, scale):
    x, squares, weight = problem(device, dtype, seed=words, words=words)
    given = x, squares / scale**2, weight
    tokens, log_odds = draft(*given, mask=words - 1)  # of 65 words, alone in its tile
    wanted, odds = judged(*given, mask=words - 1)
    assert torch.equal(tokens, wanted)
    assert torch.allclose(log_odds.double(), odds, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_the_lowest_index_wins_a_tie_within_a_tile_and_between_tiles(device, dtype):
    for seed in range(4):
        x, squares, weight = problem(device, dtype, seed, is_whole=True)
        weight[V // 2 :] = weight[: V // 2].clone()  # whoever is best, another is as good
        tokens, gaps = read(x, squares, weight)
        logits = (x.double() @ weight.double().T).tolist()
        assert tokens.tolist() == [row.index(max(row)) for row in logits]
        assert (gaps == 0).all()
        drafts, log_odds = draft(x, squares, weight, mask=V - 1)
        keep = torch.tensor([token != V // 2 - 1 for token in tokens.tolist()], device=device)
        assert torch.equal(drafts[keep], tokens[keep])
        assert (log_odds[keep] <= 0).all()  # one of two at best


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_the_mask_is_never_drafted(device, dtype):
    for mask in (0, 63, 64, MASK, V - 1):
        x, squares, weight = problem(device, dtype)
        weight[mask] = 4 * x.mean(0)
        raised = x + 4 * x.mean(0)
        assert (read(raised, squares, weight)[0] == mask).any()
        tokens, log_odds = draft(raised, squares, weight, mask=mask)
        wanted, odds = judged(raised, squares, weight, mask)
        assert not (tokens == mask).any()
        assert torch.equal(tokens, wanted)
        assert torch.allclose(log_odds.double(), odds, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_log_odds_are_clamped(device, dtype):
    x, squares, weight = problem(device, dtype)
    _, log_odds = draft(x, squares * 1e-8, weight)  # logits in the ten thousands
    assert log_odds.max() == reference.LOG_ODDS_LIMIT
    assert not log_odds.isnan().any()


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("ask", [read, draft])
def test_a_row_is_the_same_bits_whatever_the_rows_and_stale_ones_are_not_read(device, dtype, ask):
    x, squares, weight = problem(device, dtype)
    wanted = ask(x, squares, weight)
    for rows in (1, 2, 7, 15):
        stale_x, stale_squares = x.clone(), squares.clone()
        stale_x[rows:], stale_squares[rows:] = torch.nan, torch.nan
        found = ask(stale_x, stale_squares, weight, rows)
        assert all(torch.equal(a[:rows], b[:rows]) for a, b in zip(found, wanted, strict=True))
        assert not found[1].isnan().any()
        assert ((found[0] >= 0) & (found[0] < V)).all()


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("ask", [read, draft])
def test_a_row_is_the_same_bits_wherever_it_stands(device, dtype, ask):
    x, squares, weight = problem(device, dtype)
    wanted = ask(x, squares, weight)
    for shift in (1, 5, 8):
        found = ask(x.roll(shift, 0), squares.roll(shift, 0), weight)
        assert all(torch.equal(a, b.roll(shift, 0)) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_row_of_nan_still_names_a_word(device, dtype):
    x, squares, weight = problem(device, dtype)
    x[3] = torch.nan
    for tokens, _ in (read(x, squares, weight), draft(x, squares, weight)):
        assert 0 <= int(tokens[3]) < V


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_what_does_not_fit_is_refused_by_name(device, dtype):
    x, squares, weight = problem(device, dtype)
    rows = counts(1, device)
    wrong = {
        "x": (x[:8], squares, weight, rows),
        "squares": (x, squares.double(), weight, rows),
        "weight": (x, squares, weight[:, :40].contiguous(), rows),
        "rows": (x, squares, weight, rows.long()),
    }
    for name, arguments in wrong.items():
        with pytest.raises(ShapeError, match=name):
            head.read_head_scaled(*arguments, EPS)
        with pytest.raises(ShapeError, match=name):
            head.draft_head_scaled(*arguments, MASK, EPS)
