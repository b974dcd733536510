# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Blocks, caches and a judge for the tests of the attention kernels, on any device.

Everything that is stale is NaN: rows that do not count, and positions beyond those committed.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import attention
from hybridspec.kernels.reference.attention import PAGE
from hybridspec.kernels.reference.rotary import rotary_table

EPS = 1e-6
PAGES = 4
NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """H query heads, HKV key heads, D wide, of which R turn."""

    H: int = 4
    HKV: int = 2
    D: int = 32
    R: int = 8
    has_gate: bool = True

    @property
    def width(self):
        return ((2 if self.has_gate else 1) * self.H + 2 * self.HKV) * self.D


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments of attention of a block; `all_rows` are those of a full block."""

    sizes: Sizes
    all_rows: Tensor
    q_norm: Tensor
    k_norm: Tensor
    rotary: Tensor
    keys: Tensor
    values: Tensor
    start: int
    rows: int

    def arguments(self):
        """What a kernel takes, with a cache of its own."""
        device = self.keys.device
        projected = self.all_rows.clone()
        projected[self.rows :] = NAN
        counts = (
            torch.tensor(x, dtype=torch.int32, device=device) for x in (self.start, self.rows)
        )
        cache = (self.keys.clone(), self.values.clone())
        return (projected, self.q_norm, self.k_norm, EPS, self.rotary, *cache, *counts)


def case(sizes, device, dtype, start, rows=MAX_ROWS, seed=0, pages=PAGES):
    """Gaussian rows, norms near 1, and a cache that is NaN from `start` on."""
    gen = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(size, generator=gen).to(dtype).to(device)

    keys, values = (normal(pages, sizes.HKV, PAGE, sizes.D) for _ in range(2))
    for x in (keys, values):
        by_position(x)[start:] = NAN
    return Case(
        sizes=sizes,
        all_rows=normal(MAX_ROWS, sizes.width),
        q_norm=1 + normal(sizes.D) / 4,
        k_norm=1 + normal(sizes.D) / 4,
        rotary=rotary_table(sizes.R, 1e4, pages * PAGE, torch.device(device)),
        keys=keys,
        values=values,
        start=start,
        rows=rows,
    )


@dataclass(frozen=True, slots=True)
class by_position:  # noqa: N801
    """Pages [P, HKV, PAGE, D] as positions [P PAGE, HKV, D], to be read and written by slices."""

    pages: Tensor

    def __getitem__(self, at):
        return self.pages.transpose(1, 2).flatten(0, 1)[at]

    def __setitem__(self, at, value):
        flat = self[:].clone(memory_format=torch.contiguous_format)
        flat[at] = value
        self.pages.copy_(flat.view(-1, PAGE, *flat.shape[1:]).transpose(1, 2))


def filled(pages, start, number):
    """A copy with this number at every position from `start` on."""
    out = pages.clone()
    by_position(out)[start:] = number
    return out


def same(x, y):
    """Bit for bit, NaN where NaN is."""
    return torch.equal(x.isnan(), y.isnan()) and torch.equal(x.nan_to_num(0), y.nan_to_num(0))


def usual(device, dtype):
    """Small in the interpreter and in fp32; a published model's on a GPU."""
    if device == "cuda" and dtype == torch.bfloat16:
        return Sizes(H=16, HKV=2, D=256, R=64)
    return Sizes()


def gated(given):
    """What the kernel returns, and its cache."""
    arguments = given.arguments()
    return attention.attend_gated(*arguments), arguments[5], arguments[6]


def block(given, **view):
    arguments = given.arguments()
    return attention.attend_block(*arguments, **view), arguments[5], arguments[6]


def at_row(given, row):
    """The case in which plain decoding reads this row: alone, all before it committed."""
    _, keys, values = gated(replace(given, rows=row)) if row else (None, given.keys, given.values)
    rows = given.all_rows.roll(-row, 0)
    return replace(given, all_rows=rows, keys=keys, values=values, start=given.start + row, rows=1)


def turned(x, weight, position, rotary):
    """One head's vector in float64: norm, then each pair of dimensions turned."""
    x = x.double() / (x.double().square().mean() + EPS).sqrt() * weight.double()
    half = rotary.shape[-1]
    cos, sin = rotary[position].double()
    left, right = x[:half].clone(), x[half : 2 * half].clone()
    x[:half], x[half : 2 * half] = left * cos - right * sin, right * cos + left * sin
    return x


def judged(given, *, window=None, is_causal=True):
    """Row by row and head by head in float64: results [rows, H D], and new keys and values."""
    s, start, end = given.sizes, given.start, given.start + given.rows
    step = (2 if s.has_gate else 1) * s.D
    rows = given.all_rows[: given.rows].cpu()
    rotary, q_norm, k_norm = (x.cpu() for x in (given.rotary, given.q_norm, given.k_norm))
    keys, values = (by_position(x.cpu().double())[:end] for x in (given.keys, given.values))
    for row, x in enumerate(rows):
        for head in range(s.HKV):
            at = s.H * step + head * s.D
            keys[start + row, head] = turned(x[at : at + s.D], k_norm, start + row, rotary)
            values[start + row, head] = x[at + s.HKV * s.D :][: s.D].double()
    out = torch.empty(given.rows, s.H, s.D, dtype=torch.float64)
    for row, x in enumerate(rows):
        own = start + row
        seen = [
            k
            for k in range(end)
            if (k <= own or not is_causal) and (window is None or abs(own - k) < window)
        ]
        for head in range(s.H):
            q = turned(x[head * step : head * step + s.D], q_norm, own, rotary)
            group = head // (s.H // s.HKV)
            shares = (keys[seen, group] @ q / s.D**0.5).softmax(0)
            out[row, head] = shares @ values[seen, group]
            if s.has_gate:
                out[row, head] *= x[head * step + s.D : head * step + step].double().sigmoid()
    return out.view(given.rows, -1), keys[start:], values[start:]
