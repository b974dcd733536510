# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What exact mode rests on: at any number of threads a row of a 16-row product stands alone.

If this fails on some machine, its matrix library changes the order of summation with the row's
place or with the other rows, and exact mode cannot be exact there. Two numbers of threads may give
two results: some processors' libraries share a long inner dimension out among threads.
"""

import pytest
import torch
from torch.nn import functional as F

from hybridspec.core.options import MAX_ROWS

TINY = [(32, 288), (37, 129), (256, 33)]
EMBEDDED = [
    (256, 784), (256, 768), (256, 256), (256, 32), (256, 2048), (256, 257), (128, 256), (1024, 256),
    (256, 4096),
]  # fmt: skip
SHAPES = [*TINY, *EMBEDDED]
"""(inner, outer) of the tiny pair and odd ones, and of the embedded target"""


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_depends_on_neither_its_place_nor_the_other_rows(shape, threads, set_threads):
    inner, outer = shape
    set_threads(threads)
    gen = torch.Generator().manual_seed(0)
    weight = torch.randn(outer, inner, generator=gen)
    row = torch.randn(inner, generator=gen)
    found = []
    for place in range(MAX_ROWS):
        for others in (torch.randn(MAX_ROWS, inner, generator=gen), torch.zeros(MAX_ROWS, inner)):
            others[place] = row
            found.append(F.linear(others, weight)[place])
    alone = F.linear(row.expand(MAX_ROWS, -1), weight)
    assert all(torch.equal(x, found[0]) for x in (*found, *alone))
