# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The kernels of head, acceptance and policy compile for sm_90 at the 35B's shape.

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
PROGRAM = """
import json
from benchmarks.round_compile import as_shipped
print(json.dumps(list(as_shipped())))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Every kernel with the launch that its file names."""
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


def test_every_kernel_compiles_without_spills(kernels):
    names = [kernel["kernel"] for kernel in kernels]
    assert names == 2 * ["tile"] + 2 * ["reduce"] + [
        "accept",
        "settle",
        "choose",
        "correct",
        "learn",
    ]
    assert not any(kernel["spilled_bytes"] for kernel in kernels)


def test_kernels_that_rewrite_what_they_read_have_one_warp(kernels):
    in_place = [kernel for kernel in kernels if kernel["kernel"] not in ("tile", "reduce")]
    assert all(kernel["warps"] == 1 for kernel in in_place)


def test_the_weight_is_copied_ahead_and_taken_by_warp_groups(kernels):
    tiles = [kernel for kernel in kernels if kernel["kernel"] == "tile"]
    assert all(tile["copies_ahead"] and tile["has_warp_groups"] for tile in tiles)
