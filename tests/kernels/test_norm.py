# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.norm import (
    HeadGate,
    gate_heads,
    gated_rms_norm,
    l2_norm,
    rms_norm,
)
from tests.tolerances import OPERATION, distance


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_rms_norm_equals_float64(scale):
    x, weight = numbers(5, 32) * scale, numbers(32, seed=1)
    wide = x.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    assert distance(rms_norm(x, weight, 1e-6), want) < OPERATION


def test_rms_norm_adds_nothing_to_its_weight():
    assert torch.equal(rms_norm(numbers(5, 32), torch.zeros(32), 1e-6), torch.zeros(5, 32))


def test_the_gate_comes_after_the_norm():
    y, z, weight = numbers(5, 6, 24), numbers(5, 6, 24, seed=1), numbers(24, seed=2)
    wide, gate = y.double(), z.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    want = normed * gate / (1 + torch.exp(-gate))
    assert distance(gated_rms_norm(y, z, weight, 1e-6), want) < OPERATION


@pytest.mark.parametrize("groups", [1, 4, 24])
def test_gated_heads_times_their_scale_are_the_gated_norm(groups):
    y, z, weight = numbers(5, 6, 24), numbers(5, 6, 24, seed=1), numbers(24, seed=2)
    gate = HeadGate(z=z, weight=weight, squares=torch.full((5, 6, groups), torch.nan))
    gated = gate_heads(y, gate, torch.tensor(3, dtype=torch.int32))
    scale = torch.rsqrt(gate.squares[:3].sum(-1, keepdim=True) / 24 + 1e-6)
    assert distance(gated[:3] * scale, gated_rms_norm(y, z, weight, 1e-6)[:3]) < OPERATION
    assert gate.squares[3:].isnan().all()


def test_l2_norm_sums_and_does_not_average():
    x = numbers(5, 2, 16)
    wide = x.double()
    want = wide / (wide.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    assert distance(l2_norm(x), want) < OPERATION
    assert torch.equal(l2_norm(torch.zeros(3, 16)), torch.zeros(3, 16))


@pytest.mark.parametrize("dims", [37, 64, 256, 2048])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_does_not_depend_on_its_place(dims, threads, set_threads):
    set_threads(threads)
    x, weight = numbers(MAX_ROWS, dims), numbers(dims, seed=1)
    want = rms_norm(x, weight, 1e-6)[3], l2_norm(x)[3]
    for place in range(MAX_ROWS):
        moved = torch.zeros_like(x)
        moved[place] = x[3]
        assert torch.equal(rms_norm(moved, weight, 1e-6)[place], want[0])
        assert torch.equal(l2_norm(moved)[place], want[1])
