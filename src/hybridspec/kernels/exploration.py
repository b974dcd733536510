# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
"""Rows that are read to be learnt from: a part of `choose`'s program, no launch of its own."""

import torch
import triton
import triton.language as tl

from hybridspec.kernels.launch import check_tensor
from hybridspec.kernels.reference.exploration import Exploration


@triton.jit
def explored_rows(
    n, b_costs, lane, length, budget, lives, whole, purse, spent, explored, reached, trial, asked,
    BLOCK: tl.constexpr, MORE: tl.constexpr, LEAST: tl.constexpr, TRIAL: tl.constexpr,
):  # fmt: skip
    """Contract of the reference's `explore`; nothing is written unless the text lives."""
    most = tl.minimum(budget, BLOCK)
    wide = tl.maximum(n, tl.minimum(n + MORE, most))
    here = tl.sum(tl.where(lane == n - 1, b_costs, 0.0), 0)
    there = tl.sum(tl.where(lane == wide - 1, b_costs, 0.0), 0)
    cost = tl.maximum(there - here, LEAST * here)
    left, behind, is_whole = tl.load(purse), tl.load(reached), tl.load(whole) > 0
    past_spent, past_explored = tl.load(spent), tl.load(explored)
    is_probe = (behind != -1) & (behind != length)
    trials = tl.where(is_probe, TRIAL, tl.load(trial))
    buys = lives & (is_whole == 0) & (trials == 0) & (wide > n) & (cost <= left)
    tl.store(trial, trials, mask=lives)
    tl.store(purse, left - cost, mask=buys)
    tl.store(spent, past_spent + cost, mask=buys)
    tl.store(explored, past_explored + 1, mask=buys)
    read = tl.where(is_whole, tl.maximum(n, most), tl.where(buys | (trials > 0), wide, n))
    tl.store(asked, ((read > n) | is_whole).to(tl.int32), mask=lives)
    return read


def check_exploration(exploration: Exploration) -> None:
    """Raises ShapeError that names what does not fit."""
    for name in ("purse", "spent"):
        check_tensor(name, getattr(exploration, name), (), torch.float32)
    for name in ("whole", "explored", "reached", "trial", "asked"):
        check_tensor(name, getattr(exploration, name), (), torch.int32)
