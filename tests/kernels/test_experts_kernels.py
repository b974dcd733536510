# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import experts, router
from hybridspec.kernels.launch import INTERPRETED, ShapeError
from hybridspec.kernels.reference import experts as reference
from hybridspec.kernels.reference.router import Steering, relist, route, words_of
from tests.kernels.gdn_cases import EVERY_DTYPE, EVERYWHERE, ON_CUDA, counts
from tests.kernels.stream_cases import (
    EPS,
    NAN,
    STALE_ID,
    by_row,
    check_that_rows_stand_alone,
    doubled,
    few_counts,
    numbers,
    stale_routing,
    stream_of,
    unwritten,  # noqa: F401
)
from tests.tolerances import GDN_OUTPUTS, distance

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.usefixtures("unwritten"),
]

D, TOP, LAYERS, TAP = 64, 4, 3, 1
"""the second of three taps"""
# the interpreter takes 25 ms a program, of which a pass has WIDTH / 8 for each expert
E, WIDTH = (12, 16) if INTERPRETED else (32, 32)


def problem(device, dtype, D=D, E=E, WIDTH=WIDTH):
    """Rows of the stream, the norm that reads it, experts and their router."""
    return (
        numbers(device, torch.float32, MAX_ROWS, D),
        numbers(device, dtype, D, seed=1, scale=0.2) + 1,
        numbers(device, dtype, E + 1, 2 * WIDTH, D, seed=2, scale=2 * D**-0.5),
        numbers(device, dtype, E + 1, D, WIDTH, seed=3, scale=3 * WIDTH**-0.5),
        numbers(device, dtype, E + 1, D, seed=4, scale=2 * D**-0.5),
    )


def routing_of(stream, weight, n, top=TOP):
    """By formulas, rows beyond n stale; a row's routing depends on no other row."""
    x = stream.scaled.float()
    scale = torch.rsqrt(stream.squares.sum(1) / x.shape[1] + EPS)
    logits = torch.stack([weight.float() @ (row * s) for row, s in zip(x, scale, strict=True)])
    routing = stale_routing(len(weight) - 1, top, x.device)
    ids, shares = route(logits[:n, :-1], top)
    routing.ids[:n], routing.weights[:n] = ids.to(torch.int32), shares
    routing.shares[:n] = 0.0
    routing.shares[:n].scatter_(1, ids, shares)
    routing.shares[:n, -1], routing.scale[:n] = logits[:n, -1].sigmoid(), scale[:n]
    routing.words[:n] = words_of(ids, len(weight) - 1)
    relist(routing, counts(n, x.device))
    return routing


def added(h, norm, gate_up, down, weight, top=TOP, read=None, **options):
    """Residual stream, scaled rows, squares and taps of the first `read` of the routed rows."""
    stream, n = stream_of(h, norm), len(h) if read is None else read
    routing, rows = routing_of(stream, weight, len(h), top), counts(n, h.device)
    if read is not None:
        router.relist(routing, rows)
    taps, own, others = taps_of(h, norm.dtype)
    experts.experts_onto(stream, routing, gate_up, down, rows, norm, own, **options)
    assert others(taps).isnan().all()
    return *by_row(stream), own


def judged(h, norm, gate_up, down, weight, top=TOP):
    """The same in float64."""
    stream = stream_of(h, norm)
    routing, rows = routing_of(stream, weight, len(h), top), counts(len(h), h.device)
    own = taps_of(h, torch.float64)[1]
    stream, exact = doubled(stream), (x.double() for x in (gate_up, down))
    reference.experts_onto(stream, doubled(routing), *exact, rows, norm.double(), own)
    return *by_row(stream), own


def taps_of(h, dtype):
    """NaN, this layer's block of it, and what lies on its sides."""
    D = h.shape[1]
    taps = torch.full((MAX_ROWS, LAYERS * D), NAN, dtype=dtype, device=h.device)
    own = taps.chunk(LAYERS, 1)[TAP]
    return taps, own, lambda x: torch.cat((x[:, :D], x[:, 2 * D :]), 1)


def rows_of(h, *others, **options):
    """For check_that_rows_stand_alone."""
    return lambda order: added(h[order], *others, **options)


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize(
    ("D", "E", "top", "WIDTH"),
    [(32, 32, 1, 128), (96, 64, 2, 32), (128, 32, 3, 64), (320, 32, 8, 16), (32, 32, 32, 16)],
)
def test_experts_equal_float64_and_write_no_other_row(device, dtype, D, E, top, WIDTH):
    if device == "cpu" and E == 32:  # more experts in no more words
        E = min(E, top + 2)
    given = problem(device, dtype, D, E, WIDTH)
    for n in (1, MAX_ROWS) if device == "cpu" else few_counts(device):
        found = added(given[0][:n], *given[1:], top)
        wanted = judged(given[0][:n], *given[1:], top)
        for a, b in zip(found, wanted, strict=True):
            assert distance(a[:n], b[:n]) < 1.5 * GDN_OUTPUTS[dtype]  # hidden is rounded as well
            assert a[n:].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_what_is_added_equals_float64_without_the_stream(device, dtype):
    """At a stream of zeros nothing hides what experts add; the norm that they read is another's."""
    h, norm, gate_up, down, weight = problem(device, dtype)
    stream = stream_of(h, norm)
    routing, rows = routing_of(stream, weight, MAX_ROWS), counts(MAX_ROWS, device)
    stream.residual.zero_()
    exact = doubled(stream)
    experts.experts_onto(stream, routing, gate_up, down, rows, norm)
    wide = gate_up.double(), down.double()
    reference.experts_onto(exact, doubled(routing), *wide, rows, norm.double())
    assert distance(stream.residual, exact.residual) < 2 * GDN_OUTPUTS[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("top", [1, 8])
def test_a_row_is_the_same_bits_alone_and_anywhere_in_a_pass(device, dtype, top):
    check_that_rows_stand_alone(rows_of(*problem(device, dtype), top=top), device)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_row_is_the_same_bits_behind_the_router(device, dtype):
    """Both as the engine calls them."""
    h, norm, gate_up, down, weight = problem(device, dtype)

    def run(order):
        stream, rows = stream_of(h[order], norm), counts(len(order), device)
        routing = stale_routing(E, TOP, device, parts=router.splits(D))
        router.route_stream(stream, weight, rows, EPS, routing)
        experts.experts_onto(stream, routing, gate_up, down, rows, norm)
        return by_row(stream)

    check_that_rows_stand_alone(run, device)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("is_steered", [False, True], ids=["free", "steered"])
@pytest.mark.parametrize(
    ("D", "parts", "sums_to_one"), [(64, 1, True), (64, 2, False), (128, 4, True)]
)
def test_one_row_is_the_same_bits_in_launches_for_one_and_for_sixteen(
    device, dtype, D, parts, sums_to_one, is_steered
):
    h, norm, gate_up, down, weight = problem(device, dtype, D)
    steering, found = steering_of(device) if is_steered else None, []
    for most_rows in (1, MAX_ROWS):
        stream, rows = stream_of(h[:1], norm), counts(1, device)
        routing = replace(stale_routing(E, TOP, device, parts=parts), sums_to_one=sums_to_one)
        router.route_stream(stream, weight, rows, EPS, routing, steering, most_rows=most_rows)
        experts.experts_onto(stream, routing, gate_up, down, rows, norm, most_rows=most_rows)
        named = [getattr(routing, x) for x in ("ids", "weights", "shares", "scale", "words")]
        assert all((x[1:].isnan() | (x[1:] == STALE_ID)).all() for x in named)
        assert all(x[1:].isnan().all() for x in by_row(stream))
        listed = routing.chosen[: int(routing.count)]
        assert listed.tolist() == [E, *sorted(routing.ids[0].tolist())]
        if steering is not None:
            assert set(routing.ids[0].tolist()) == set(steering.table[3].tolist())
        found.append([*(x[:1] for x in (*by_row(stream), *named)), listed])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def steering_of(device):
    """At position 3."""
    gen = torch.Generator().manual_seed(5)
    table = torch.rand(8, E, generator=gen).argsort(1)[:, :TOP].to(torch.int32).to(device)
    return Steering(table=table, length=counts(3, device))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_rows_that_were_dropped_after_routing_change_nothing(device, dtype):
    h, *others = problem(device, dtype)
    for n in (1, 9):
        found = added(h[:12], *others, read=n)
        wanted = added(h[:n], *others)
        for a, b in zip(found, wanted, strict=True):
            assert torch.equal(a[:n], b[:n])


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_without_taps_and_with_programs_for_fewer_rows_it_is_the_same_bits(device, dtype):
    h, *others = problem(device, dtype)
    n = 3
    wanted = added(h[:n], *others)
    fewer = added(h[:n], *others, most_rows=n)
    assert all(torch.equal(a[:n], b[:n]) for a, b in zip(fewer, wanted, strict=True))
    norm, gate_up, down, weight = others
    stream = stream_of(h[:n], norm)
    routing = routing_of(stream, weight, n)
    experts.experts_onto(stream, routing, gate_up, down, counts(n, device), norm)
    untapped = by_row(stream)
    assert all(torch.equal(a[:n], b[:n]) for a, b in zip(untapped, wanted, strict=False))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_experts_that_no_row_chose_are_not_read(device, dtype):
    h, norm, gate_up, down, weight = problem(device, dtype)
    n = 2
    wanted = added(h[:n], norm, gate_up, down, weight)
    routing = routing_of(stream_of(h[:n], norm), weight, n)
    unread = torch.ones(E + 1, dtype=torch.bool, device=device)
    unread[E], unread[routing.ids[:n].long()] = False, False
    assert unread.any()
    gate_up[unread], down[unread] = NAN, NAN
    found = added(h[:n], norm, gate_up, down, weight)
    assert all(torch.equal(a[:n], b[:n]) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_row_of_nan_leaves_the_others_alone(device, dtype):
    given = problem(device, dtype)
    others = [i for i in range(MAX_ROWS) if i != 5]
    wanted = added(*given)
    given[0][5] = NAN
    found = added(*given)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a[others], b[others])
        assert a[5].isnan().all()


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
def test_fifty_repeats_are_the_same_bits(device, dtype):
    given = problem(device, dtype, 256, 256, 128)
    wanted = added(*given, top=8)
    for _ in range(50):
        assert all(torch.equal(a, b) for a, b in zip(added(*given, top=8), wanted, strict=True))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_what_does_not_fit_is_refused_by_name(device, dtype):
    h, norm, gate_up, down, weight = problem(device, dtype, WIDTH=32)
    stream, rows = stream_of(h, norm), counts(1, device)
    routing = routing_of(stream, weight, 1)
    thin = gate_up[:, :48].contiguous(), down[..., :24].contiguous()
    for name, arguments in {
        "gate_up": (stream, routing, gate_up[:-1], down, rows, norm),
        "down": (stream, routing, gate_up, down[:-1], rows, norm),
        "24 wide": (stream, routing, *thin, rows, norm),
        "rows": (stream, routing, gate_up, down, rows.long(), norm),
        "norm": (stream, routing, gate_up, down, rows, norm[:32]),
        "taps": (stream, routing, gate_up, down, rows, norm, h[:, :32]),
        "residual": (replace(stream, residual=h.T), routing, gate_up, down, rows, norm),
        "ids": (stream, replace(routing, ids=routing.ids[:8]), gate_up, down, rows, norm),
        "chosen": (
            stream,
            replace(routing, chosen=routing.chosen.long()),
            gate_up,
            down,
            rows,
            norm,
        ),
    }.items():
        with pytest.raises(ShapeError, match=name):
            experts.experts_onto(*arguments)
