# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The launch of the gated norm that benchmarks/gdn_verify.py times."""

import pytest
import torch

pytest.importorskip("triton")

from benchmarks import gated_norm
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference.norm import gated_rms_norm
from tests.kernels.gdn_cases import EVERY_DTYPE, EVERYWHERE
from tests.tolerances import GDN_OUTPUTS, distance

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


def numbers(device, dtype, *shape, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen).to(dtype).to(device)


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize("V", [16, 128])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 50.0])
def test_gated_norm_equals_float64(device, dtype, V, scale):
    y = numbers(device, dtype, 2, 3, 4, V) * scale
    z, weight = numbers(device, dtype, 2, 3, 4, V, seed=1), numbers(device, dtype, V, seed=2)
    found = gated_norm.gated_rms_norm(y, z, weight, 1e-6)
    assert found.dtype == dtype
    wanted = gated_rms_norm(y.double(), z.double(), weight.double(), 1e-6)
    assert distance(found, wanted) < GDN_OUTPUTS[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(
    ("y", "z", "weight", "words"),
    [
        ((3, 32), (3, 16), (32,), "z"),
        ((3, 32), (3, 32), (16,), "weight"),
        ((3, 24), (3, 24), (24,), "not 24"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(device, dtype, y, z, weight, words):
    with pytest.raises(ShapeError, match=words):
        gated_norm.gated_rms_norm(*(numbers(device, dtype, *s) for s in (y, z, weight)), 1e-6)
