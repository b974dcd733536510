# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch
from torch.nn import functional as F

from hybridspec.kernels.reference.activation import sigmoid, silu, softplus
from tests.tolerances import OPERATION, distance

OPERATIONS = [sigmoid, silu, softplus]


def numbers(size, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 6


@pytest.mark.parametrize("ours", OPERATIONS)
def test_values_equal_float64(ours):
    x = torch.cat((numbers(4001), torch.linspace(-80, 80, 999)))
    theirs = {sigmoid: torch.sigmoid, silu: F.silu, softplus: F.softplus}[ours]
    assert distance(ours(x), theirs(x.double())) < OPERATION
    assert torch.isfinite(ours(x)).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("ours", OPERATIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 1023, 100_003])
def test_an_element_does_not_depend_on_its_place(ours, size, threads, set_threads):
    x = numbers(size)
    set_threads(threads)
    want = ours(x)
    for shift in (1, 2, 3, 5, 8, 13):
        moved = ours(torch.cat((numbers(shift, seed=9), x)))[shift:]
        assert torch.equal(moved, want)
        assert torch.equal(ours(x[: -shift or None]), want[: -shift or None])
    set_threads(1)
    assert torch.equal(ours(x), want)


@pytest.mark.parametrize("ours", OPERATIONS)
def test_an_element_alone_or_in_a_strided_view_is_the_same(ours):
    x = numbers(16 * 37).view(16, 37)
    want = ours(x)
    assert torch.equal(torch.stack([ours(e) for e in x.flatten()]).view_as(x), want)
    assert torch.equal(ours(x.T), want.T)
    for left, right in ((0, 6), (5, 11), (36, 37), (1, 36)):
        assert torch.equal(ours(x[:, left:right]), want[:, left:right])
        assert torch.equal(ours(x[3:4, left:right]), want[3:4, left:right])
