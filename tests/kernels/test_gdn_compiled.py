# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The GDN kernels compile for sm_90, and round the state in the order that exactness needs."""

import re

import pytest

pytest.importorskip("triton")

from tests.kernels.compiling import compiled

PROGRAM = """
import json, sys
from dataclasses import asdict
from benchmarks.gdn_compile import compiled
widths = (16, 32), (128, 128)
print(json.dumps([asdict(kernel) for K, V in widths for kernel in compiled(K, V)]))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Every kernel at keys of 16 and values of 32, and at the published models' 128, by name."""
    found = compiled(PROGRAM, tmp_path_factory.mktemp("triton"))
    return {(kernel["kernel"], kernel["K"]): kernel for kernel in found}


def test_every_kernel_compiles_without_spills(kernels):
    names = ("convolve", "walk", "block", "commit_exact", "commit_block")
    assert set(kernels) == {(name, K) for name in names for K in (16, 128)}
    assert not any(kernel["spilled_bytes"] or kernel["strays"] for kernel in kernels.values())


@pytest.mark.parametrize("K", [16, 128])
@pytest.mark.parametrize("name", ["walk", "commit_exact"])
def test_the_state_decays_by_a_product_and_is_written_by_one_fused_operation(kernels, name, K):
    """S <- fma(u, k, S alpha) of each number of the state, and no other operation takes alpha.

    An fma(S, alpha, u k) would round otherwise than the other kernel.
    """
    ptx = kernels[name, K]["ptx"]
    products = dict(re.findall(r"mul(?:\.rn)?\.f32 \s*(%\w+), (%\w+, %\w+);", ptx))
    fused = re.findall(r"fma\.rn\.f32 \s*(%\w+), (%\w+), (%\w+), (\S+);", ptx)
    decays = set()
    numbers = 0
    for state, u, k, decayed in fused:
        before, _, alpha = products.get(decayed, "").partition(", ")
        if before == state:
            assert alpha not in (u, k)
            decays.add(alpha)
            numbers += 1
    assert numbers == kernels[name, K]["columns"] * K / 32
    assert len(decays) == 1
    assert not any(alpha in line[1:] for alpha in decays for line in fused)
    taking = [x for x in products.values() if decays & set(x.split(", "))]
    assert len(taking) == numbers
