# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.attention import PAGE, attend, write_pages
from tests.tolerances import OPERATION, distance

H, HKV, D, PAGES = 6, 2, 16, 4
PLACES = [0, 1, 5, PAGE - MAX_ROWS, PAGE - 3, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 77]


def cache(seed=0):
    """Keys and values by position [P, HKV, D], and the same in pages."""
    gen = torch.Generator().manual_seed(seed)
    flat = [torch.randn(PAGES * PAGE, HKV, D, generator=gen) for _ in range(2)]
    return flat, [in_pages(x) for x in flat]


def in_pages(flat):
    return flat.view(PAGES, PAGE, HKV, D).transpose(1, 2).contiguous()


def queries(rows, seed=0):
    return torch.randn(rows, H, D, generator=torch.Generator().manual_seed(seed + 50)) * 2


def judge(q, keys, values, start):
    """One row and one head at a time, in float64, over exactly the positions that it may see."""
    out = torch.empty(q.shape, dtype=torch.float64)
    for row in range(len(q)):
        for head in range(H):
            group = head // (H // HKV)
            seen = slice(0, start + row + 1)
            scores = keys[seen, group].double() @ q[row, head].double() / D**0.5
            out[row, head] = scores.softmax(0) @ values[seen, group].double()
    return out


@pytest.mark.parametrize("start", PLACES)
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_attention_equals_softmax_in_float64(start, rows):
    (keys, values), pages = cache()
    q = queries(rows)
    assert distance(attend(q, *pages, start), judge(q, keys, values, start)) < OPERATION


def test_long_scores_do_not_overflow():
    (keys, values), pages = cache()
    q = queries(4) * 1e3
    found = attend(q, *pages, 130)
    assert distance(found, judge(q, keys, values, 130)) < OPERATION


@pytest.mark.parametrize("start", PLACES)
def test_rows_are_written_where_they_stand(start):
    flat, (pages, _) = cache()
    rows = torch.randn(MAX_ROWS, HKV, D)
    flat[0][start : start + 11] = rows[:11]
    write_pages(pages, rows, start, 11)
    assert torch.equal(pages, in_pages(flat[0]))


@pytest.mark.parametrize("start", PLACES)
@pytest.mark.parametrize("stale", [1e4, -1e4, 0.0])
def test_stale_positions_have_no_influence(start, stale):
    (keys, values), pages = cache()
    q = queries(MAX_ROWS)
    want = attend(q, *pages, start)
    for row in range(MAX_ROWS):
        later = [x.clone() for x in (keys, values)]
        for x in later:
            x[start + row + 1 :] = stale
        assert torch.equal(attend(q, *map(in_pages, later), start)[row], want[row])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("heads", [(6, 2, 16), (4, 2, 64), (16, 2, 256)])
@pytest.mark.parametrize("position", [0, 7, 15, PAGE - 1, PAGE, PAGE + 9, 7 * PAGE - 5])
def test_a_row_does_not_depend_on_its_place_in_the_block(position, heads, threads, set_threads):
    query_heads, key_heads, dims = heads
    set_threads(threads)
    gen = torch.Generator().manual_seed(0)
    pages = [torch.randn(8, key_heads, PAGE, dims, generator=gen) for _ in range(2)]
    q = torch.randn(query_heads, dims, generator=gen)
    found = []
    for place in range(min(MAX_ROWS, position + 1)):
        for scale in (0, 2):  # the row stands at `place`, among zeros or other rows
            block = torch.randn(MAX_ROWS, query_heads, dims, generator=gen) * scale
            block[place] = q
            found.append(attend(block, *pages, position - place)[place])
    assert all(torch.equal(x, found[0]) for x in found)
