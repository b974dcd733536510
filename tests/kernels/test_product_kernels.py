# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import product
from hybridspec.kernels.gdn.rows import CONV
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import product as reference
from hybridspec.kernels.reference.gdn import Convolution, convolve
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
    unwritten,  # noqa: F401
)
from tests.tolerances import GDN_OUTPUTS, GDN_STATE, distance

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.usefixtures("unwritten"),
]

D, M, K, LAYERS, TAP = 128, 96, 256, 3, 1
"""6 tiles of 16 columns; the second of three taps"""


def problem(device, dtype, D=D, K=K):
    """Rows of the stream, the norm that reads it, and rows of another input."""
    h = numbers(device, torch.float32, MAX_ROWS, D, scale=3.0)
    return h, numbers(device, dtype, D, seed=1) + 1, numbers(device, dtype, MAX_ROWS, K, seed=2)


def weight_of(device, dtype, rows, columns, seed=3):
    return numbers(device, dtype, rows, columns, seed=seed, scale=columns**-0.5)


def projected(h, norm, weight, by=product.project):
    return by(stream_of(h, norm), weight, counts(len(h), h.device), EPS)


def onto(x, weight, h, norm, by=product.project_onto):
    """Residual stream, scaled rows, squares and taps, rows first, and all other taps."""
    stream = stream_of(h, norm)
    taps = torch.full((MAX_ROWS, LAYERS * h.shape[1]), NAN, dtype=x.dtype, device=x.device)
    if by is not product.project_onto:
        stream, taps = doubled(stream), taps.double()
    own = taps.chunk(LAYERS, 1)[TAP]
    by(below(x), weight, counts(len(h), h.device), stream, norm, own)
    others = torch.cat((taps[:, : h.shape[1]], taps[:, 2 * h.shape[1] :]), 1)
    return *by_row(stream), own, others


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize(("D", "M"), [(32, 16), (64, 112), (96, 32), (128, M), (512, 48)])
def test_project_equals_float64_at_every_number_of_rows(device, dtype, D, M):
    h, norm, _ = problem(device, dtype, D)
    weight = weight_of(device, dtype, M, D)
    for n in few_counts(device):
        found = projected(h[:n], norm, weight)
        exact = doubled(stream_of(h[:n], norm))
        wanted = reference.project(exact, weight.double(), counts(n, device), EPS)
        assert (found.shape, found.dtype) == ((MAX_ROWS, M), dtype)
        assert distance(found[:n], wanted[:n]) < GDN_OUTPUTS[dtype]
        assert found[n:].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize(("D", "WIDTH"), [(32, 8), (96, 24), (128, 48), (512, 16), (768, 8)])
def test_project_gated_equals_float64_at_every_number_of_rows(device, dtype, D, WIDTH):
    h, norm, _ = problem(device, dtype, D)
    weight = weight_of(device, dtype, 2 * WIDTH, D)
    for n in few_counts(device):
        found = projected(h[:n], norm, weight, product.project_gated)
        exact = doubled(stream_of(h[:n], norm))
        wanted = reference.project_gated(exact, weight.double(), counts(n, device), EPS)
        assert (found.shape, found.dtype) == ((MAX_ROWS, WIDTH), dtype)
        assert distance(found[:n], wanted[:n]) < GDN_OUTPUTS[dtype]
        assert found[n:].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize(("D", "K"), [(16, 32), (64, 512), (96, 96), (128, 256), (256, 64)])
def test_project_onto_equals_float64_and_writes_no_other_row(device, dtype, D, K):
    h, norm, x = problem(device, dtype, D, K)
    weight = weight_of(device, dtype, D, K)
    for n in few_counts(device):
        *found, others = onto(x[:n], weight, h[:n], norm)
        exact = x.double(), weight.double()
        *wanted, _ = onto(exact[0][:n], exact[1], h[:n], norm, reference.project_onto)
        limits = GDN_STATE, GDN_OUTPUTS[dtype], GDN_STATE, GDN_OUTPUTS[dtype]
        for a, b, limit in zip(found, wanted, limits, strict=True):
            assert distance(a[:n], b[:n]) < limit
            assert a[n:].isnan().all()
        assert others.isnan().all()


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_an_inner_dimension_in_several_rounds_equals_float64(device, dtype, tiles, monkeypatch):
    for name in ("ONTO", "PROJECT"):
        monkeypatch.setattr(product, f"{name}_TILES", tiles)
        monkeypatch.setattr(product, f"{name}_WARPS", 2)
    h, norm, x = problem(device, dtype, 32, 512)
    wide, wide_norm, _ = problem(device, dtype, 512)
    weight = weight_of(device, dtype, 32, 512)
    for n in few_counts(device):
        found = onto(x[:n], weight, h[:n], norm)[0]
        wanted = h[:n].double() + x[:n].double() @ weight.double().T
        assert distance(found[:n], wanted) < GDN_STATE
        found = projected(wide[:n], wide_norm, weight)
        exact = doubled(stream_of(wide[:n], wide_norm))
        wanted = reference.project(exact, weight.double(), counts(n, device), EPS)
        assert distance(found[:n], wanted[:n]) < GDN_OUTPUTS[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_without_taps_the_stream_is_the_same_bits(device, dtype):
    h, norm, x = problem(device, dtype)
    weight = weight_of(device, dtype, D, K)
    for n in (3, MAX_ROWS):
        tapped = onto(x[:n], weight, h[:n], norm)
        stream = stream_of(h[:n], norm)
        product.project_onto(below(x[:n]), weight, counts(n, device), stream, norm)
        for found, wanted in zip(by_row(stream), tapped, strict=False):
            assert torch.equal(found[:n], wanted[:n])
            assert found[n:].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_whole_numbers_are_exact_at_every_number_of_rows(device, dtype):
    gen = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (MAX_ROWS, K), generator=gen)
    weight = torch.randint(-3, 4, (D, K), generator=gen)
    h = torch.randint(-99, 100, (MAX_ROWS, D), generator=gen)
    wanted = (h + x @ weight.T).float().to(device)
    norm = torch.ones(D, dtype=dtype, device=device)
    given = x.to(dtype).to(device), weight.to(dtype).to(device), h.float().to(device)
    for n in few_counts(device):
        found = onto(given[0][:n], given[1], given[2][:n], norm)[0]
        assert torch.equal(found[:n], wanted[:n])


def operations(device, dtype, given=None):
    """Each product of rows in an order, all others stale."""
    h, norm, x = given or problem(device, dtype)
    wide, back = weight_of(device, dtype, M, D), weight_of(device, dtype, D, K)
    return {
        "project": lambda order: (projected(h[order], norm, wide),),
        "project_gated": lambda order: (projected(h[order], norm, wide, product.project_gated),),
        "project_onto": lambda order: onto(x[order], back, h[order], norm)[:-1],
    }


NAMES = ("project", "project_gated", "project_onto")


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_bits_alone_and_anywhere_in_a_pass(device, dtype, name):
    check_that_rows_stand_alone(operations(device, dtype)[name], device)


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
@pytest.mark.parametrize("name", NAMES)
def test_fifty_repeats_are_the_same_bits(device, dtype, name):
    run = operations(device, dtype)[name]
    wanted = run(list(range(MAX_ROWS)))
    for _ in range(50):
        found = run(list(range(MAX_ROWS)))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_nan_leaves_the_others_alone(device, dtype, name):
    rows = problem(device, dtype)
    whole, others = list(range(MAX_ROWS)), [i for i in range(MAX_ROWS) if i != 5]
    wanted = operations(device, dtype, rows)[name](whole)
    rows[0][5], rows[2][5] = NAN, NAN
    found = operations(device, dtype, rows)[name](whole)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a[others], b[others])
        assert a[5].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_what_does_not_fit_is_refused_by_name(device, dtype):
    h, norm, x = problem(device, dtype)
    stream, rows = stream_of(h, norm), counts(1, device)
    wide, back = weight_of(device, dtype, M, D), weight_of(device, dtype, D, K)
    for by in (product.project, product.project_gated):
        for name, arguments in {
            "weight has 56 rows": (stream, wide[:56], rows),
            "weight": (stream, wide[:, :64].contiguous(), rows),
            "rows": (stream, wide, rows.long()),
            "squares": (replace(stream, squares=stream.squares[:, :1]), wide, rows),
            "scaled": (replace(stream, scaled=stream.scaled.T), wide, rows),
        }.items():
            with pytest.raises(ShapeError, match=name):
                by(*arguments, EPS)
    narrow = stream_of(h[:, :48], norm[:48])
    with pytest.raises(ShapeError, match="dimension of 48"):
        product.project(narrow, wide[:, :48].contiguous(), rows, EPS)
    taps = torch.zeros(MAX_ROWS, 2 * D, dtype=dtype, device=device)
    for name, arguments in {
        "x": (x[:, :64], back, rows, stream, norm),
        "weight": (x, back[:64], rows, stream, norm),
        "rows": (x, back, rows.float(), stream, norm),
        "norm": (x, back, rows, stream, norm[:64]),
        "taps": (x, back, rows, stream, norm, taps),
        "taps must": (x, back, rows, stream, norm, taps[:, ::2]),
        "dimension of 48": (x[:, :48].contiguous(), back[:, :48].contiguous(), rows, stream, norm),
    }.items():
        with pytest.raises(ShapeError, match=name):
            product.project_onto(*arguments)


def convolution_of(device, dtype, C):
    """Taps and past of C channels; what is to be written is NaN."""
    return Convolution(
        weight=numbers(device, dtype, CONV, C, seed=5),
        past=numbers(device, dtype, CONV - 1, C, seed=6),
        inputs=torch.full((MAX_ROWS, C), NAN, dtype=dtype, device=device),
        mixed=torch.full((MAX_ROWS, C), NAN, device=device),
    )


def convolved(h, norm, weight, of):
    return product.project(stream_of(h, norm), weight, counts(len(h), h.device), EPS, of)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(("C", "M"), [(32, 32), (48, 80), (96, 112)])
def test_columns_that_are_convolved_go_to_inputs_and_mixed_and_the_others_to_y(device, dtype, C, M):
    h, norm, _ = problem(device, dtype)
    weight = weight_of(device, dtype, M, D)
    for n in few_counts(device):
        of, plain = convolution_of(device, dtype, C), projected(h[:n], norm, weight)
        y = convolved(h[:n], norm, weight, of)
        assert torch.equal(of.inputs[:n], plain[:n, :C])
        assert torch.equal(y[:n, C:], plain[:n, C:])
        wide = (x.double() for x in (of.inputs[:n], of.weight, of.past))
        assert distance(of.mixed[:n], convolve(*wide)) < GDN_STATE
        assert all(x[n:].isnan().all() for x in (y, of.inputs, of.mixed))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_row_is_convolved_to_the_same_bits_wherever_a_block_begins(device, dtype):
    """Rows before it are of its block, or of the past."""
    h, norm, _ = problem(device, dtype)
    weight, whole = weight_of(device, dtype, 48, D), convolution_of(device, dtype, 32)
    convolved(h, norm, weight, whole)
    for n in (1, 2, 3, 7, 8, 9, 15):
        own = convolution_of(device, dtype, 32)
        own = replace(own, past=torch.cat((own.past, whole.inputs[:n]))[1 - CONV :])
        convolved(h[n:], norm, weight, own)
        assert torch.equal(own.mixed[: MAX_ROWS - n], whole.mixed[n:])


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_convolution_that_does_not_fit_is_refused_by_name(device, dtype):
    h, norm, _ = problem(device, dtype)
    weight, of = weight_of(device, dtype, 48, D), convolution_of(device, dtype, 32)
    for name, wrong in {
        "weight": replace(of, weight=of.weight[1:]),
        "past": replace(of, past=of.weight),
        "inputs": replace(of, inputs=of.inputs[:8]),
        "mixed": replace(of, mixed=of.mixed.double()),
        "24 of 48 columns": convolution_of(device, dtype, 24),
        "64 of 48 columns": convolution_of(device, dtype, 64),
    }.items():
        with pytest.raises(ShapeError, match=name):
            convolved(h, norm, weight, wrong)
