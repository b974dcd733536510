# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tap rows that wait for the drafter: kept in order, and passed on."""

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.kernels import taps
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import taps as reference
from tests.kernels.gdn_cases import EVERYWHERE


def count(value, device):
    return torch.tensor(value, dtype=torch.int32, device=device)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("width", [48, 256, 300])
@pytest.mark.parametrize("rows", [(5, 0, 11), (16, 16), (1, 15, 16), (0,)])
def test_rows_wait_in_the_order_in_which_they_came(device, dtype, width, rows):
    ring = torch.full((32, width), -1.0, dtype=dtype, device=device)
    waiting, injected = count(0, device), count(7, device)
    twin, waiting_twin, injected_twin = ring.clone(), waiting.clone(), injected.clone()
    for number, kept in enumerate(rows):
        given = torch.full((16, width), float("nan"), dtype=dtype, device=device)
        given[:kept] = torch.arange(kept, device=device)[:, None] + 20 * number
        taps.keep_taps(given, count(kept, device), ring, waiting)
        reference.keep_taps(given, count(kept, device), twin, waiting_twin)
        assert int(waiting) == int(waiting_twin) == sum(rows[: number + 1])
        assert torch.equal(ring, twin)
    taps.pass_taps(waiting, injected)
    reference.pass_taps(waiting_twin, injected_twin)
    assert int(waiting) == int(waiting_twin) == 0
    assert int(injected) == int(injected_twin) == 7 + sum(rows)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_what_does_not_fit_is_refused_by_name(device, dtype):
    rows, waiting = count(1, device), count(0, device)
    given, ring = (torch.zeros(n, 32, dtype=dtype, device=device) for n in (16, 32))
    for name, arguments in {
        "taps": (given[:8], rows, ring, waiting),
        "ring": (given, rows, ring[:16], waiting),
        "waiting": (given, rows, ring, waiting.long()),
    }.items():
        with pytest.raises(ShapeError, match=name):
            taps.keep_taps(*arguments)
