# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The attention kernels compile for sm_90 at the shapes of published models."""

import pytest

pytest.importorskip("triton")

from tests.kernels.compiling import SHARED_LIMIT, compiled

PROGRAM = """
import json
from dataclasses import asdict
from benchmarks.attention_compile import SHAPES, compiled
print(json.dumps([asdict(kernel) for shape in SHAPES for kernel in compiled(shape)]))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return compiled(PROGRAM, tmp_path_factory.mktemp("triton"))


def test_every_kernel_fits_without_spills(kernels):
    found = {(kernel["kernel"], kernel["view"]) for kernel in kernels}
    views = ("gated", "full", "sliding")
    both = {(name, view) for name in ("split", "combine") for view in views}
    assert found == both | {("context", "context")}
    for kernel in kernels:
        assert kernel["spilled_bytes"] == kernel["strays"] == 0, kernel
        assert kernel["shared_bytes"] <= SHARED_LIMIT, kernel


def test_products_of_a_published_models_rows_run_on_whole_warp_groups(kernels):
    """And their keys and values arrive by asynchronous copies of 16 bytes."""
    for kernel in kernels:
        if kernel["kernel"] == "split" and kernel["shape"] != "small":
            assert kernel["products"] == ["wgmma"], kernel
            assert kernel["copied_bytes"] == [16], kernel
