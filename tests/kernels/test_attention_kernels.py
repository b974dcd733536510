# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import attention
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import attention as reference
from hybridspec.kernels.reference.attention import PAGE
from tests.kernels.attention_cases import (
    EPS,
    NAN,
    PAGES,
    Sizes,
    at_row,
    block,
    by_position,
    case,
    filled,
    gated,
    judged,
    same,
    usual,
)
from tests.kernels.gdn_cases import EVERY_DTYPE, EVERYWHERE, ON_CUDA, STALE
from tests.tolerances import ATTENTION, distance

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

EDGES = [0, 1, 31, PAGE - 3, PAGE - MAX_ROWS, 2 * PAGE - 1, PAGE, 3 * PAGE + 77]
VIEWS = [
    (None, False),
    (None, True),
    (100, False),
    (100, True),
    (5, True),
    (1, False),
    (4096, True),
]
GROUPS = [
    Sizes(H=2, HKV=2, D=16, R=16),
    Sizes(H=2, HKV=1, D=32, R=2),
    Sizes(H=8, HKV=1, D=64, R=16),
    Sizes(H=16, HKV=1, D=32, R=8),
    Sizes(H=6, HKV=3, D=128, R=32),
    Sizes(H=4, HKV=1, D=256, R=64),
]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """So few splits that each takes several blocks of a small cache."""
    monkeypatch.setattr(attention, "PROGRAMS", 8)


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize(
    ("start", "rows"), [(x, n) for i, x in enumerate(EDGES) for n in ((1, 5), (1, MAX_ROWS))[i % 2]]
)
def test_gated_attention_equals_float64(device, dtype, start, rows):
    given = case(usual(device, dtype), device, dtype, start, rows)
    y, keys, _ = gated(given)
    wanted, new_keys, _ = judged(given)
    assert y.dtype == dtype
    assert distance(y[:rows].cpu(), wanted) < ATTENTION[dtype]
    assert distance(by_position(keys)[start : start + rows].cpu(), new_keys) < ATTENTION[dtype]


@settings(max_examples=12)
@given(start=st.integers(0, PAGES * PAGE - MAX_ROWS), rows=st.integers(1, MAX_ROWS))
@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_gated_attention_equals_its_reference(device, dtype, start, rows):
    given = case(usual(device, dtype), device, dtype, start, rows)
    found = gated(given)
    calm = replace(given, keys=given.keys.nan_to_num(0), values=given.values.nan_to_num(0))
    arguments = calm.arguments()
    wanted = reference.attend_gated(*arguments), arguments[5], arguments[6]
    assert distance(found[0][:rows], wanted[0][:rows]) < ATTENTION[dtype]
    for x, y in zip(found[1:], wanted[1:], strict=True):
        written = slice(0, start + rows)
        assert distance(by_position(x)[written], by_position(y)[written]) < ATTENTION[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("sizes", GROUPS, ids=str)
def test_every_group_and_width_equals_float64(device, dtype, sizes):
    given = case(sizes, device, dtype, 150, 3)
    assert distance(gated(given)[0][:3].cpu(), judged(given)[0]) < ATTENTION[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("window", [None, 150])
def test_long_scores_do_not_overflow(device, dtype, window):
    given = case(replace(usual(device, dtype), has_gate=False), device, dtype, 200)
    given = replace(given, q_norm=given.q_norm * 300, k_norm=given.k_norm * 300)
    y, _, _ = block(given, window=window, is_causal=True)
    assert y.isfinite().all()
    if dtype == torch.float32:
        assert distance(y.cpu(), judged(given, window=window)[0]) < 2e4 * ATTENTION[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize("start", [0, 3, PAGE - 9, 2 * PAGE - 1, 3 * PAGE])
def test_a_row_is_the_same_bit_for_bit_alone_and_in_every_block(device, dtype, start):
    given = case(usual(device, dtype), device, dtype, start)
    y, keys, values = gated(given)
    for row in range(MAX_ROWS) if device == "cuda" else (0, 6, MAX_ROWS - 1):
        fewer, *_ = gated(replace(given, rows=row + 1))
        assert torch.equal(fewer[: row + 1], y[: row + 1]), row
        alone, its_keys, its_values = gated(at_row(given, row))
        assert torch.equal(alone[0], y[row]), row
        for one, all_of_them in ((its_keys, keys), (its_values, values)):
            here = slice(0, start + row + 1)
            assert torch.equal(by_position(one)[here], by_position(all_of_them)[here]), row


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
@pytest.mark.parametrize("start", [5000, 16 * PAGE - 5])
def test_a_long_context_equals_float64_and_each_row_alone(device, dtype, start, monkeypatch):
    """With the splits that decoding has: a program takes several blocks, the last few take one."""
    monkeypatch.setattr(attention, "PROGRAMS", 128)
    given = case(usual(device, dtype), device, dtype, start, pages=40)
    y, *_ = gated(given)
    assert distance(y.cpu(), judged(given)[0]) < ATTENTION[dtype]
    for row in range(MAX_ROWS):
        assert torch.equal(gated(at_row(given, row))[0][0], y[row]), row


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("place", [0, 1, 7, 15])
def test_a_row_is_the_same_whatever_came_with_it(device, dtype, place):
    """Rows after it are other ones, and so is the room in the cache."""
    given = case(usual(device, dtype), device, dtype, 200, place + 1)
    y, *_ = gated(given)
    others = given.all_rows.clone()
    others[place + 1 :] *= 3
    room = [torch.cat((x, torch.full_like(x, NAN))) for x in (given.keys, given.values)]
    rotary = torch.cat((given.rotary, given.rotary))
    crowd = replace(given, all_rows=others, rows=MAX_ROWS, keys=room[0], values=room[1])
    assert torch.equal(gated(replace(crowd, rotary=rotary))[0][: place + 1], y[: place + 1])


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("start", [0, PAGE - 3, 300])
@pytest.mark.parametrize("stale", [0.0, 1e4, float("inf")])
def test_what_is_stale_has_no_influence(device, dtype, start, stale):
    given = case(usual(device, dtype), device, dtype, start, 5)
    keys, values = (filled(x, start, stale) for x in (given.keys, given.values))
    assert torch.equal(gated(given)[0][:5], gated(replace(given, keys=keys, values=values))[0][:5])


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("rows", [1, 5, MAX_ROWS])
@pytest.mark.parametrize(("start", "before"), [(0, NAN), (PAGE - 3, 7.0), (300, NAN), (300, 7.0)])
def test_nothing_is_written_beyond_the_rows_that_count(
    device, dtype, start, rows, before, monkeypatch
):
    given = case(usual(device, dtype), device, dtype, start, rows)
    stale = {name: filled(getattr(given, name), start, before) for name in ("keys", "values")}
    given = replace(given, **stale)
    whole, *_ = gated(given)
    empty = torch.empty
    monkeypatch.setattr(attention.torch, "empty", lambda *a, **k: empty(*a, **k).fill_(before))
    y, keys, values = gated(given)
    assert torch.equal(y[:rows], whole[:rows])  # and partial results that are stale do no harm
    assert same(y[rows:], torch.full_like(y[rows:], before))
    for after, cache in ((keys, given.keys), (values, given.values)):
        new = by_position(after)[start : start + rows]
        assert new.isfinite().all()
        wanted = cache.clone()
        by_position(wanted)[start : start + rows] = new
        assert same(after, wanted)
    _, _, new_values = judged(given)
    assert torch.equal(by_position(values)[start : start + rows].cpu().double(), new_values)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(("window", "is_causal"), VIEWS)
@pytest.mark.parametrize(("start", "rows"), [(0, 16), (PAGE - 3, 7), (400, 16)])
def test_a_drafters_block_equals_float64(device, dtype, window, is_causal, start, rows):
    sizes = replace(usual(device, dtype), has_gate=False)
    given = case(replace(sizes, R=sizes.D), device, dtype, start, rows)
    y, keys, values = block(given, window=window, is_causal=is_causal)
    wanted, new_keys, new_values = judged(given, window=window, is_causal=is_causal)
    assert distance(y[:rows].cpu(), wanted) < ATTENTION[dtype]
    here = slice(start, start + rows)
    assert distance(by_position(keys)[here].cpu(), new_keys) < ATTENTION[dtype]
    assert torch.equal(by_position(values)[here].cpu().double(), new_values)
    if dtype == torch.float32:
        twin = given.arguments()
        y_twin = reference.attend_block(*twin, window=window, is_causal=is_causal)
        assert distance(y[:rows], y_twin[:rows]) < ATTENTION[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(("start", "rows"), [(0, 1), (PAGE - 3, 9), (300, 16), (300, 0)])
def test_context_of_all_layers_is_written_as_the_reference_does(device, dtype, start, rows):
    L, HKV, D = 3, 2, usual(device, dtype).D
    layers = [
        case(Sizes(HKV=HKV, D=D, R=D, has_gate=False), device, dtype, start, seed=seed)
        for seed in range(L)
    ]
    cache = [
        torch.stack([filled(getattr(x, name), start, STALE) for x in layers])
        for name in ("keys", "values")
    ]
    projected = torch.stack([x.all_rows[:, -2 * HKV * D :] for x in layers], 1).contiguous()
    projected[rows:] = NAN
    k_norm = torch.stack([x.k_norm for x in layers])
    counts = [torch.tensor(x, dtype=torch.int32, device=device) for x in (start, rows)]
    found, wanted = ([x.clone() for x in cache] for _ in range(2))
    attention.write_context(projected, k_norm, EPS, layers[0].rotary, *found, *counts)
    reference.write_context(projected, k_norm, EPS, layers[0].rotary, *wanted, *counts)
    for x, y in zip(found, wanted, strict=True):
        assert torch.equal(x == STALE, y == STALE)
        assert x.isfinite().all()
    assert torch.equal(found[1], wanted[1])
    assert distance(found[0], wanted[0]) < ATTENTION[dtype]


NAMES = ["projected", "q_norm", "k_norm", "eps", "rotary", "keys", "values", "length", "rows"]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("projected", lambda x: x[:, 32:].contiguous(), "projected"),
        ("projected", lambda x: x[:, 2 * 32 * 3 :].contiguous(), "1 query heads"),
        ("projected", lambda x: torch.cat((x, x)), "up to 16"),
        ("projected", lambda x: x.double(), "projected must be"),
        ("projected", lambda x: torch.cat((x, x), 1)[:, : x.shape[1]], "contiguous"),
        ("q_norm", lambda x: x[1:], "q_norm"),
        ("k_norm", lambda x: x.double(), "k_norm"),
        ("rotary", lambda x: x[..., :3].contiguous(), "rotary turns 6"),
        ("rotary", lambda x: x.double(), "rotary must be"),
        ("keys", lambda x: x.transpose(1, 2), "keys must be"),
        ("keys", lambda x: x[..., :24].contiguous(), "24 wide"),
        ("values", lambda x: x[1:], "values"),
        ("length", lambda x: x.long(), "length"),
        ("rows", lambda x: x[None], "rows"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(device, dtype, name, damage, words):
    arguments = dict(zip(NAMES, case(Sizes(), device, dtype, 0).arguments(), strict=True))
    arguments[name] = damage(arguments[name])
    with pytest.raises(ShapeError, match=words):
        attention.attend_gated(**arguments)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_window_of_nothing_is_refused(device, dtype):
    with pytest.raises(ShapeError, match="window"):
        block(case(Sizes(has_gate=False), device, dtype, 0), window=0, is_causal=True)
