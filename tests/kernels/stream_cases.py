# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Streams, numbers and checks for the tests of a pass's kernels, on any device."""

from dataclasses import fields, replace

import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.router import Routing
from hybridspec.kernels.reference.stream import Stream, write

EPS = 1e-6
NAN = torch.nan
STALE_ID = -(2**30)


@pytest.fixture
def unwritten(monkeypatch):
    """Memory that a launch allocates is NaN until it is written."""
    empty = torch.empty

    def poisoned(*size, **options):
        found = empty(*size, **options)
        return found.fill_(NAN) if found.is_floating_point() else found

    monkeypatch.setattr(torch, "empty", poisoned)


def numbers(device, dtype, *shape, seed=0, scale=1.0):
    """Gaussian, the same on every device."""
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=gen) * scale).to(dtype).to(device)


def below(x, fill=NAN):
    """x [n, ...] with stale rows after it: [MAX_ROWS, ...]."""
    return torch.cat((x, x.new_full((MAX_ROWS - len(x), *x.shape[1:]), fill)))


def stream_of(h, norm):
    """The stream of rows h [n, D] float32; NaN in all others. It has the dtype of norm."""
    D, device = h.shape[1], h.device
    stream = Stream(
        residual=torch.full((MAX_ROWS, D), NAN, device=device),
        scaled=torch.full((MAX_ROWS, D), NAN, device=device, dtype=norm.dtype),
        squares=torch.full((MAX_ROWS, D // 16), NAN, device=device),
    )
    write(stream, h, norm)
    return stream


def stale_routing(E, top, device="cpu", *, parts=1, pieces=1):
    """A routing that was never written: numbers NaN, experts in no range; parts: of logits."""
    routing = Routing.empty(E, top, device, parts=parts, pieces=pieces)
    for x in (routing.weights, routing.shares, routing.scale, routing.logits):
        x.fill_(NAN)
    for x in (routing.ids, routing.chosen, routing.readers, routing.count, routing.words):
        x.fill_(STALE_ID)
    return routing


def doubled(parts):
    """A stream or routing in float64, integers as they are: a judge's own."""
    return replace(
        parts,
        **{
            f.name: x.double() if x.is_floating_point() else x.clone()
            for f in fields(parts)
            for x in [getattr(parts, f.name)]
            if isinstance(x, torch.Tensor)
        },
    )


def by_row(stream):
    """What a pass leaves in the stream, each [MAX_ROWS, ...]."""
    return stream.residual, stream.scaled, stream.squares


def few_counts(device):
    """Numbers of rows: both sides of eight, and on a GPU all."""
    return range(1, MAX_ROWS + 1) if device == "cuda" else (1, 2, 8, 9, 16)


def two_counts(device):
    """One on each side of eight, and on a GPU all."""
    return range(1, MAX_ROWS + 1) if device == "cuda" else (3, 9)


def orders(device):
    """Passes of every number of rows, in which a row stands in several places."""
    if device != "cuda":
        return [7], [11, 0], [0, 11, 3, 4, 5, 6, 1, 7, 2], [*range(5, MAX_ROWS), *range(5)]
    places = range(MAX_ROWS)
    return [
        [(i + shift) % MAX_ROWS for i in range(n)]
        for n in range(1, MAX_ROWS + 1)
        for shift in places
    ]


def check_that_rows_stand_alone(run, device):
    """A row of any pass has the bits that it has in a pass of its own, wherever it stands.

    run(order): what a pass of these rows in this order finds, several tensors [MAX_ROWS, ...]
    """
    picked = range(MAX_ROWS) if device == "cuda" else (0, 7, 11)
    alone = {i: [x[0].clone() for x in run([i])] for i in picked}
    for order in orders(device):
        found = run(order)
        for place, i in enumerate(order):
            if i in alone:
                for x, wanted in zip(found, alone[i], strict=True):
                    assert torch.equal(x[place], wanted), (order, place)
