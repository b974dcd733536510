# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The kernels of a pass compile for sm_90 at the 35B's shape."""

import pytest

pytest.importorskip("triton")

from tests.kernels.compiling import compiled

SUMS = 4 << 10
"""bytes of eight warps' sums of a tile, at most"""
SCALES = 2
"""matrix loads of eight rows' scales each, which change hands once a tile"""
PROGRAM = """
import json
from dataclasses import asdict
from benchmarks.pass_compile import compiled
print(json.dumps([asdict(kernel) | {"fits": kernel.fits()} for kernel in compiled()]))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return compiled(PROGRAM, tmp_path_factory.mktemp("triton"))


def test_every_kernel_fits_and_spills_nothing_but_addresses(kernels):
    names = {kernel["kernel"] for kernel in kernels}
    assert names == {
        "enter",
        "project",
        "project_onto",
        "gated",
        "logits",
        "pick",
        "list",
        "gate_up",
        "down",
    }
    for kernel in kernels:
        assert kernel["fits"], kernel


def test_every_launch_begins_early_and_waits(kernels):
    """One that reads too soon would be right most of the time."""
    for kernel in kernels:
        assert kernel["waits"], kernel
        assert kernel["is_early"], kernel


def test_weights_of_products_go_straight_into_registers_of_tensor_cores(kernels):
    """16 bytes a load; only sums of a tile meet in shared memory."""
    for kernel in kernels:
        if kernel["kernel"] in ("project", "project_onto"):
            assert kernel["copies"] == 0, kernel
            assert kernel["matrix_loads"] <= SCALES, kernel
            assert kernel["shared_bytes"] <= SUMS, kernel
            assert kernel["products"] > 0, kernel
            # of a thread: two of the weight and as many of 16 rows for every two products
            assert kernel["wide_loads"] >= kernel["products"], kernel


def test_weights_of_experts_are_copied_ahead(kernels):
    for kernel in kernels:
        if kernel["kernel"] in ("gate_up", "gated", "down"):
            assert kernel["copies"] > 0, kernel
            assert kernel["products"] > 0, kernel
