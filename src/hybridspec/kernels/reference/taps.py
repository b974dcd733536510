# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tap rows that wait for the drafter: kept by a round, injected before the next draft."""

from torch import Tensor


def keep_taps(taps: Tensor, rows: Tensor, ring: Tensor, waiting: Tensor) -> None:
    """Append the first `rows` tap rows to those that wait.

    taps    [MAX_ROWS, taps D]       float
    rows    []                       int32, 0..MAX_ROWS
    ring    [2 MAX_ROWS, taps D]     as taps
    waiting []                       int32: rows of the ring that wait, at most MAX_ROWS before
    """
    first, count = int(waiting), int(rows)
    ring[first : first + count] = taps[:count]
    waiting.add_(count)


def pass_taps(waiting: Tensor, injected: Tensor) -> None:
    """What waited is injected: waiting [] int32 -> 0, injected [] int32 moves by as much."""
    injected.add_(waiting)
    waiting.zero_()
