# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The kernels of a pass compile for sm_90 at the 35B's shape.

In a process of its own: this one interprets its kernels.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
SHARED_LIMIT = 227 << 10
"""bytes that a program of sm_90 may hold"""
SUMS = 4 << 10
"""bytes of eight warps' sums of a tile, at most"""
PROGRAM = """
import json
from dataclasses import asdict
from benchmarks.pass_compile import compiled
print(json.dumps([asdict(kernel) for kernel in compiled()]))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    settings = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    settings["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_every_kernel_fits_without_spills(kernels):
    names = {kernel["kernel"] for kernel in kernels}
    assert names == {"enter", "project", "project_onto", "gate_up", "route", "list", "down"}
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["shared_bytes"] <= SHARED_LIMIT, kernel


def test_weights_of_products_go_straight_into_registers_of_tensor_cores(kernels):
    """16 bytes a load; only sums of a tile meet in shared memory."""
    for kernel in kernels:
        if kernel["kernel"] in ("project", "project_onto"):
            assert kernel["copies"] == kernel["matrix_loads"] == 0, kernel
            assert kernel["shared_bytes"] <= SUMS, kernel
            assert kernel["products"] > 0, kernel
            # of a thread: two of the weight and as many of 16 rows for every two products
            assert kernel["wide_loads"] >= kernel["products"], kernel


def test_weights_of_experts_are_copied_ahead(kernels):
    for kernel in kernels:
        if kernel["kernel"] in ("gate_up", "down"):
            assert kernel["copies"] > 0, kernel
            assert kernel["products"] > 0, kernel
