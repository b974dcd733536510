# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The kernels of head, acceptance and policy compile for sm_90 at the 35B's shape."""

import pytest

pytest.importorskip("triton")

from tests.kernels.compiling import compiled

PROGRAM = """
import json
from benchmarks.round_compile import as_shipped
print(json.dumps(list(as_shipped())))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Every kernel with the launch that its file names."""
    return compiled(PROGRAM, tmp_path_factory.mktemp("triton"))


def test_every_kernel_compiles_without_spills(kernels):
    names = [kernel["kernel"] for kernel in kernels]
    of_round = ["settle", "choose", "correct", "learn", "begin"]
    assert names == ["tile", "tile", "reduce", "reduce", *of_round]
    assert not any(kernel["spilled_bytes"] or kernel["strays"] for kernel in kernels)


def test_kernels_that_rewrite_what_they_read_have_one_warp(kernels):
    in_place = [kernel for kernel in kernels if kernel["kernel"] not in ("tile", "reduce")]
    assert all(kernel["warps"] == 1 for kernel in in_place)


def test_the_weight_is_copied_ahead_and_taken_by_warp_groups(kernels):
    tiles = [kernel for kernel in kernels if kernel["kernel"] == "tile"]
    assert all(tile["copies_ahead"] and tile["has_warp_groups"] for tile in tiles)
