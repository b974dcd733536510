# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import accept
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import accept as reference
from hybridspec.kernels.reference.accept import ACCEPTED, DONE, ROUND, ROWS, Ledger
from tests.kernels.gdn_cases import counts, interpreted

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

DEVICES = [
    pytest.param("cpu", marks=interpreted, id="interpreted"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="cuda"),
]
SLOTS = 3
PERFECT = list(range(99, 115)), list(range(100, 116))
"""drafts that the target agrees with, all of them"""


def ids(values, device):
    return torch.tensor(values, dtype=torch.int64, device=device)


def opened(device, budget=1000):
    anchor, length = ids(7, device), counts(50, device)
    return Ledger.opened(anchor, length=length, budget=budget, slots=SLOTS)


def same(found, wanted):
    """All but the time of day."""
    names = [f.name for f in fields(found) if f.name != "settled"]
    return all(torch.equal(getattr(found, name), getattr(wanted, name)) for name in names)


@st.composite
def rounds(draw, size):
    tokens = st.lists(st.integers(0, 2), min_size=size, max_size=size)
    return draw(tokens), draw(tokens), draw(st.integers(1, size))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=120)
@given(
    data=st.data(),
    size=st.integers(1, MAX_ROWS),
    stop_ids=st.lists(st.integers(0, 5), max_size=3),
    budget=st.integers(1, 20),
)
def test_blocks_of_any_size_are_settled_as_by_the_reference(device, data, size, stop_ids, budget):
    block, target, rows = data.draw(rounds(size))
    given_ = ids(block, device), ids(target, device), counts(rows, device), ids(stop_ids, device)
    found, wanted = opened(device, budget), opened(device, budget)
    accept.settle(*given_, found)
    reference.settle(*given_, wanted)
    assert same(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60)
@given(data=st.data(), stop_ids=st.lists(st.integers(0, 9), max_size=2), budget=st.integers(0, 30))
def test_a_ledger_equals_the_references_round_after_round(device, data, stop_ids, budget):
    found, wanted = opened(device, budget), opened(device, budget)
    for _ in range(2 * SLOTS):
        block, target, rows = data.draw(rounds(MAX_ROWS))
        rows = data.draw(st.sampled_from([rows, rows, 0]))
        given_ = (ids(block, device), ids(target, device), counts(rows, device))
        accept.settle(*given_, ids(stop_ids, device), found)
        reference.settle(*given_, ids(stop_ids, device), wanted)
        assert same(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settle", [accept.settle, reference.settle], ids=["kernel", "reference"])
def test_rounds_after_the_end_change_nothing_but_their_slot(device, settle):
    block, target = (ids(x, device) for x in PERFECT)
    ledger = opened(device, budget=20)
    for rows in (16, 16, 16, 5):
        settle(block, target, counts(rows, device), ids([], device), ledger)
    assert int(ledger.anchor) == 103  # 16 tokens, then the 4 that were left
    assert int(ledger.length) == 70
    assert int(ledger.budget) == 0
    assert int(ledger.committed) == 0
    assert int(ledger.rounds) == 4
    assert bool(ledger.is_done)
    columns = [ACCEPTED, ROWS, DONE, ROUND]
    assert ledger.ring[:, columns].tolist() == [[-1, 0, 1, 3], [3, 16, 1, 1], [-1, 0, 1, 2]]
    assert ledger.ring[1, :MAX_ROWS].tolist() == [100, 101, 102, 103] + [-1] * 12
    assert (ledger.ring[[0, 2], :MAX_ROWS] == -1).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", [0, 1, 9, 15])
def test_a_stop_id_ends_the_text_where_it_stands(device, place):
    block, target = (ids(x, device) for x in PERFECT)
    ledger = opened(device)
    for _ in range(2):
        accept.settle(block, target, counts(16, device), ids([3, 100 + place], device), ledger)
    assert int(ledger.length) == 50 + place + 1
    assert int(ledger.anchor) == 100 + place
    assert bool(ledger.is_done)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
def test_what_lies_beyond_the_rows_is_not_seen(device, rows):
    block, target = (ids(x, device) for x in PERFECT)
    stops = ids([100 + rows], device)  # the first token that is stale
    ledger = opened(device)
    accept.settle(block, target, counts(rows, device), stops, ledger)
    assert int(ledger.committed) == rows
    assert not bool(ledger.is_done)
    assert ledger.ring[0, :rows].tolist() == list(range(100, 100 + rows))


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused_by_name(device):
    block, target = (ids(x, device) for x in PERFECT)
    rows, stops = counts(1, device), ids([1], device)
    wrong = {
        "block": (ids(range(17), device), target, rows, stops),
        "target": (block, target.int(), rows, stops),
        "rows": (block, target, rows.long(), stops),
        "stop_ids": (block, target, rows, stops[0]),
    }
    for name, arguments in wrong.items():
        with pytest.raises(ShapeError, match=name):
            accept.settle(*arguments, opened(device))
    ledger = opened(device)
    with pytest.raises(ShapeError, match="budget"):
        accept.settle(block, target, rows, stops, replace(ledger, budget=ledger.budget.long()))
