# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The attention kernels compile for sm_90 at the shapes of published models.

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
PROGRAM = """
import json
from dataclasses import asdict
from benchmarks.attention_compile import SHAPES, compiled
print(json.dumps([asdict(kernel) for shape in SHAPES for kernel in compiled(shape)]))
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
    found = {(kernel["kernel"], kernel["view"]) for kernel in kernels}
    views = ("gated", "full", "sliding")
    both = {(name, view) for name in ("split", "combine") for view in views}
    assert found == both | {("context", "context")}
    for kernel in kernels:
        assert kernel["spilled_bytes"] == 0, kernel
        assert kernel["shared_bytes"] <= SHARED_LIMIT, kernel


def test_products_of_a_published_models_rows_run_on_whole_warp_groups(kernels):
    """And their keys and values arrive by asynchronous copies of 16 bytes."""
    for kernel in kernels:
        if kernel["kernel"] == "split" and kernel["shape"] != "small":
            assert kernel["products"] == ["wgmma"], kernel
            assert kernel["copied_bytes"] == [16], kernel
