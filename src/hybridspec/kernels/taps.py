# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false, reportCallIssue=false
"""Tap rows that wait for the drafter: kept by a round, injected before the next draft.

Each is one launch; the counts are on the device.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.launch import check_tensor

COLUMNS = 256


@triton.jit
def _keep_kernel(taps, rows, ring, waiting, WIDTH, COLUMNS: tl.constexpr):
    row = tl.arange(0, 16)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < tl.load(rows)) & (column < WIDTH)
    kept = tl.load(taps + row * WIDTH + column, mask=inside)
    tl.store(ring + (tl.load(waiting) + row) * WIDTH + column, kept, mask=inside)


@triton.jit
def _count_kernel(waiting, rows):
    tl.store(waiting, tl.load(waiting) + tl.load(rows))


@triton.jit
def _pass_kernel(waiting, injected):
    tl.store(injected, tl.load(injected) + tl.load(waiting))
    tl.store(waiting, 0)


def keep_taps(taps: Tensor, rows: Tensor, ring: Tensor, waiting: Tensor) -> None:
    """Append the first `rows` tap rows to those that wait; contract of the reference."""
    width = taps.shape[1]
    check_tensor("taps", taps, (MAX_ROWS, width), ring.dtype)
    check_tensor("ring", ring, (2 * MAX_ROWS, width), taps.dtype)
    check_tensor("waiting", waiting, (), torch.int32)
    grid = (triton.cdiv(width, COLUMNS),)
    _keep_kernel[grid](taps, rows, ring, waiting, width, COLUMNS=COLUMNS, num_warps=4)
    _count_kernel[(1,)](waiting, rows, num_warps=1)


def pass_taps(waiting: Tensor, injected: Tensor) -> None:
    """What waited is injected; contract of the reference."""
    check_tensor("waiting", waiting, (), torch.int32)
    check_tensor("injected", injected, (), torch.int32)
    _pass_kernel[(1,)](waiting, injected, num_warps=1)
