# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The product behind a GDN layer, which norms the heads that it reads."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import product
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import product as reference
from hybridspec.kernels.reference.norm import Heads
from tests.kernels.gdn_cases import EVERY_DTYPE, EVERYWHERE, ON_CUDA, counts
from tests.kernels.stream_cases import (
    EPS,
    NAN,
    below,
    by_row,
    check_that_rows_stand_alone,
    doubled,
    few_counts,
    numbers,
    stream_of,
    two_counts,
    unwritten,  # noqa: F401
)
from tests.tolerances import GDN_OUTPUTS, GDN_STATE, distance

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.usefixtures("unwritten"),
]
everywhere = pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
D = 32


def problem(device, dtype, HV, V, groups, scale=1.0):
    """Heads, the stream's rows, its next norm and the weight."""
    heads = Heads(
        rows=numbers(device, dtype, MAX_ROWS, HV, V, scale=scale),
        squares=numbers(device, torch.float32, MAX_ROWS, HV, groups, seed=1, scale=scale).square()
        * V,  # other heads, other scales
    )
    h = numbers(device, torch.float32, MAX_ROWS, D, seed=2, scale=3.0)
    weight = numbers(device, dtype, D, HV * V, seed=4, scale=(HV * V) ** -0.5)
    return heads, h, numbers(device, dtype, D, seed=3) + 1, weight


def onto(heads, h, norm, weight, order, by=product.project_heads_onto):
    """What is left in the stream by these rows in this order, all others stale."""
    stream, rows = stream_of(h[order], norm), counts(len(order), h.device)
    own = Heads(rows=below(heads.rows[order]), squares=below(heads.squares[order]))
    if by is not product.project_heads_onto:
        stream, own, weight, norm = doubled(stream), doubled(own), weight.double(), norm.double()
    by(own, weight, rows, EPS, stream, norm)
    return by_row(stream)


def check(given, n, dtype):
    """The first n rows against float64; no other is written."""
    found = onto(*given, range(n))
    wanted = onto(*given, range(n), reference.project_heads_onto)
    for a, b, limit in zip(found, wanted, (GDN_STATE, GDN_OUTPUTS[dtype], GDN_STATE), strict=True):
        assert distance(a[:n], b[:n]) < limit
        assert a[n:].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize(
    ("HV", "V"), [(1, 32), (3, 32), (8, 32), (2, 128), (6, 128), (9, 128)], ids=str
)
def test_heads_equal_float64_at_every_number_of_rows(device, dtype, HV, V, groups):
    """Heads that a warp shares with none, that are several a warp, that lie across two warps."""
    given = problem(device, dtype, HV, V, groups)
    for n in few_counts(device) if groups == 4 else two_counts(device):
        check(given, n, dtype)


@everywhere
@pytest.mark.parametrize(("tiles", "warps"), [(1, 2), (2, 2), (4, 1), (2, 4)])
def test_heads_in_several_rounds_of_loads_equal_float64(device, dtype, tiles, warps, monkeypatch):
    monkeypatch.setattr(product, "ONTO_TILES", tiles)
    monkeypatch.setattr(product, "ONTO_WARPS", warps)
    given = problem(device, dtype, 4, 128, 4)
    for n in few_counts(device):
        check(given, n, dtype)


@everywhere
@pytest.mark.parametrize("scale", [1e-2, 50.0])
def test_the_size_of_heads_does_not_matter(device, dtype, scale):
    check(problem(device, dtype, 3, 32, 4, scale), MAX_ROWS, dtype)


@everywhere
def test_a_head_of_zeros_adds_nothing(device, dtype):
    heads, h, norm, weight = problem(device, dtype, 2, 32, 4)
    heads.rows[3], heads.squares[3] = 0, 0
    assert torch.equal(onto(heads, h, norm, weight, range(MAX_ROWS))[0][3], h[3])


@everywhere
@pytest.mark.parametrize(("HV", "V", "groups"), [(3, 32, 4), (4, 128, 16)])
def test_a_row_is_the_same_bits_alone_and_anywhere_in_a_pass(device, dtype, HV, V, groups):
    given = problem(device, dtype, HV, V, groups)
    check_that_rows_stand_alone(lambda order: onto(*given, order), device)


@everywhere
def test_a_row_of_nan_leaves_the_others_alone(device, dtype):
    given, others = (
        problem(device, dtype, 3, 32, 4),
        [i for i in range(MAX_ROWS) if i not in (5, 9)],
    )
    wanted = onto(*given, range(MAX_ROWS))
    given[0].rows[5], given[0].squares[9] = NAN, NAN
    for a, b in zip(onto(*given, range(MAX_ROWS)), wanted, strict=True):
        assert torch.equal(a[others], b[others])
        assert a[[5, 9]].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
def test_fifty_repeats_are_the_same_bits(device, dtype):
    given = problem(device, dtype, 32, 128, 16)
    wanted = onto(*given, range(MAX_ROWS))
    for _ in range(50):
        found = onto(*given, range(MAX_ROWS))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@everywhere
def test_what_does_not_fit_is_refused_by_name(device, dtype):
    heads, h, norm, weight = problem(device, dtype, 2, 64, 4)
    stream, rows = stream_of(h, norm), counts(1, device)
    thin, odd = (problem(device, dtype, 4, V, 4)[0] for V in (16, 96))
    for name, arguments in {
        "heads are 16 wide": (thin, weight[:, :64].contiguous(), rows),
        "heads are 96 wide": (odd, weight, rows),
        "in 3 groups": (replace(heads, squares=heads.squares[..., :3].contiguous()), weight, rows),
        "squares": (replace(heads, squares=heads.squares[:, :1]), weight, rows),
        "squares must be float32": (replace(heads, squares=heads.squares.double()), weight, rows),
        "x must": (
            Heads(rows=heads.rows[:8], squares=heads.squares[:8]),
            weight,
            rows,
        ),
        "weight must": (heads, weight[:16], rows),
        "rows must": (heads, weight, rows.long()),
    }.items():
        with pytest.raises(ShapeError, match=name):
            product.project_heads_onto(*arguments, EPS, stream, norm)
    with pytest.raises(ShapeError, match="norm"):
        product.project_heads_onto(heads, weight, rows, EPS, stream, norm[:16])
