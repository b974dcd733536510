# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import router
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import router as reference
from hybridspec.kernels.reference.router import Routing, Steering
from hybridspec.kernels.reference.stream import normed
from tests.kernels.gdn_cases import EVERYWHERE, ON_CUDA, STALE, counts
from tests.kernels.stream_cases import (
    EPS,
    NAN,
    STALE_ID,
    check_that_rows_stand_alone,
    doubled,
    few_counts,
    numbers,
    stale_routing,
    stream_of,
    two_counts,
    unwritten,  # noqa: F401
)
from tests.tolerances import GDN_STATE, ROUTER_GAP, distance

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.usefixtures("unwritten"),
]

D, E, TOP = 128, 64, 4


def problem(device, dtype, E=E, D=D, seed=0):
    """Rows of the stream, the norm that reads it, and a router with its shared gate."""
    h = numbers(device, torch.float32, MAX_ROWS, D, seed=seed)
    weight = numbers(device, dtype, E + 1, D, seed=seed + 2, scale=2 * D**-0.5)
    return h, numbers(device, dtype, D, seed=seed + 1, scale=0.2) + 1, weight


def whole_problem(device, dtype, E=E, D=D):
    """Small whole numbers, and norms of 1: logits are exact, and often equal."""
    gen = torch.Generator().manual_seed(0)
    h = torch.randint(2, (MAX_ROWS, D), generator=gen).float() * 2 - 1
    weight = torch.randint(-1, 2, (E + 1, D), generator=gen).to(dtype)
    h[2] = 0  # all logits are equal
    return h.to(device), torch.ones(D, dtype=dtype, device=device), weight.to(device)


def routed(h, norm, weight, top=TOP, steering=None, eps=EPS, parts=None, **options):
    """By logits in as many parts as the engine's, or so many."""
    parts = parts or router.splits(h.shape[1])
    routing = replace(stale_routing(len(weight) - 1, top, h.device, parts=parts), **options)
    routing.scale.fill_(STALE)  # that of a stale row would be NaN
    rows = counts(len(h), h.device)
    router.route_stream(stream_of(h, norm), weight, rows, eps, routing, steering)
    return routing


def judged(h, norm, weight, top=TOP, **options):
    """The same in float64; no two logits that matter are so near that float32 may swap them."""
    stream = doubled(stream_of(h, norm))
    routing = doubled(replace(stale_routing(len(weight) - 1, top, h.device), **options))
    rows = counts(len(h), h.device)
    reference.route_stream(stream, weight.double(), rows, EPS, routing)
    logits = normed(stream, rows, EPS) @ weight[:-1].double().T
    best = logits.sort(descending=True).values[:, : top + 1]
    assert (best.diff().abs() > ROUTER_GAP).all()
    return routing


BY_ROW = ("ids", "weights", "shares", "scale", "words", "logits")


def by_row(routing):
    return [getattr(routing, name) for name in BY_ROW]


def check_words(routing, n):
    """The bits of a row are its experts, all of them and no others."""
    for ids, words in zip(routing.ids[:n].tolist(), routing.words[:n].tolist(), strict=True):
        bits = {32 * p + lane for lane in range(32) for p in range(32) if words[lane] >> p & 1}
        assert bits == set(ids)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("sums_to_one", [True, False])
@pytest.mark.parametrize(
    ("E", "top", "D"),
    [
        (32, 1, 128),
        (32, 32, 64),
        (40, 3, 128),
        (64, 2, 256),
        (128, 3, 96),
        (256, 8, 128),
        (512, 10, 64),
    ],
)
def test_routing_equals_float64_and_writes_no_other_row(device, dtype, E, top, D, sums_to_one):
    """Logits in 1, 2 and 4 parts, as the width allows."""
    h, norm, weight = problem(device, dtype, E, D)
    for n in few_counts(device) if top == 1 else two_counts(device):
        found = routed(h[:n], norm, weight, top, sums_to_one=sums_to_one)
        wanted = judged(h[:n], norm, weight, top, sums_to_one=sums_to_one)
        assert torch.equal(found.ids, wanted.ids)
        assert found.logits[n:].isnan().all()
        assert (found.words[n:] == STALE_ID).all()
        for name in ("weights", "shares", "scale"):
            a, b = getattr(found, name), getattr(wanted, name)
            assert distance(a[:n], b[:n]) < GDN_STATE
            assert (a[n:].isnan() | (a[n:] == STALE)).all()
        assert not found.scale.isnan().any()
        assert torch.equal(found.words[:n], wanted.words[:n])
        check_words(found, n)
        assert int(found.arrived) == 0


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_logits_are_the_sum_of_their_parts(device, dtype, parts):
    """Each of its own columns, before the stream's scale; also the shared gate's."""
    h, norm, weight = problem(device, dtype)
    for n in two_counts(device):
        found = routed(h[:n], norm, weight, parts=parts)
        x = stream_of(h[:n], norm).scaled[:n].double().unflatten(1, (parts, -1))
        wanted = torch.einsum("npd,epd->npe", x, weight.double().unflatten(1, (parts, -1)))
        assert found.logits.shape == (MAX_ROWS, parts, E + 1)
        assert distance(found.logits[:n], wanted) < GDN_STATE
        assert torch.equal(found.ids, judged(h[:n], norm, weight).ids)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(("E", "top"), [(32, 8), (256, 8), (64, 32)])
def test_of_equal_logits_the_lower_index_wins_at_every_number_of_rows(device, dtype, E, top):
    h, norm, weight = whole_problem(device, dtype, E)
    logits = (h.double() @ weight[:-1].double().T).long().tolist()
    wanted = [sorted(range(E), key=lambda i: (-row[i], i))[:top] for row in logits]
    assert any(len(set(row)) < E for row in logits)
    for n in range(1, MAX_ROWS + 1) if E == 32 else two_counts(device):
        found = routed(h[:n], norm, weight, top, eps=2**-30)  # scale: 1
        assert found.ids[:n].tolist() == wanted[:n]
        check_words(found, n)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("sums_to_one", [True, False])
def test_a_row_of_equal_logits_goes_to_the_first_experts_in_equal_shares(
    device, dtype, sums_to_one
):
    h, norm, weight = whole_problem(device, dtype)
    found = routed(h, norm, weight, sums_to_one=sums_to_one)
    assert found.ids[2].tolist() == list(range(TOP))
    assert (found.weights[2] == found.weights[2, 0]).all()
    assert float(found.weights[2, 0]) == pytest.approx(1 / (TOP if sums_to_one else E), rel=1e-6)
    assert float(found.shares[2, E]) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_zeros_of_either_sign_are_equal(device, dtype):
    """Logits so small that they are 0 or -0 after the norm."""
    h, norm, weight = problem(device, dtype)
    norm, weight = torch.full_like(norm, 1e-30), torch.zeros_like(weight)
    h[:, 0], h[:, 1:] = 1e15, 1e18  # scaled: 1e-15, norm: 1e-18 of it
    weight[: E // 2 : 2, 0], weight[1 : E // 2 : 2, 0] = -1e-15, 1e-15
    for n in (1, 8, 9, MAX_ROWS):
        found = routed(h[:n], norm, weight)
        assert found.ids[:n].tolist() == [list(range(TOP))] * n


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_row_is_the_same_bits_alone_and_anywhere_in_a_pass(device, dtype):
    for sums_to_one, parts in ((True, 4), (False, 1)):
        h, norm, weight = problem(device, dtype)
        check_that_rows_stand_alone(
            lambda order: by_row(
                routed(h[order], norm, weight, parts=parts, sums_to_one=sums_to_one)  # noqa: B023
            ),
            device,
        )


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_steered_rows_choose_among_the_experts_of_their_position_alone(device, dtype):
    h, norm, weight = problem(device, dtype)
    gen = torch.Generator().manual_seed(3)
    table = torch.rand(40, E, generator=gen).argsort(1)[:, :TOP].to(torch.int32).to(device)
    for start in (0, 23):
        steering = Steering(table=table, length=counts(start, device))
        for n in (1, 9, MAX_ROWS):
            found = routed(h[:n], norm, weight, steering=steering)
            assert torch.equal(found.ids[:n].sort().values, table[start : start + n].sort().values)
            x = normed(doubled(stream_of(h[:n], norm)), counts(n, device), EPS)
            own = (x @ weight[:-1].double().T).gather(1, found.ids[:n].long())
            assert distance(found.weights[:n], own.softmax(1)) < GDN_STATE
            check_words(found, n)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_row_of_nan_names_experts_and_leaves_the_others_alone(device, dtype, sign):
    h, norm, weight = problem(device, dtype)
    others = [i for i in range(MAX_ROWS) if i not in (3, 9)]
    wanted = routed(h, norm, weight)
    h[3] = torch.copysign(torch.tensor(NAN), torch.tensor(sign))
    h[9, 0] = sign * torch.inf
    found = routed(h, norm, weight)
    assert ((found.ids >= 0) & (found.ids < E)).all()
    assert all(len(set(row)) == TOP for row in found.ids.tolist())
    check_words(found, MAX_ROWS)
    for a, b in zip(by_row(found), by_row(wanted), strict=True):
        assert torch.equal(a[others], b[others])
    assert torch.equal(found.logits[others], wanted.logits[others])
    weight[5] = NAN  # one logit of every row
    found = routed(h, norm, weight)
    assert ((found.ids >= 0) & (found.ids < E)).all()
    check_words(found, MAX_ROWS)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize(("E", "top"), [(32, 1), (64, 2), (256, 8), (512, 10), (1024, 4)])
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_list_is_what_the_rows_that_are_left_chose(device, dtype, E, top, pieces):
    """Led by the shared expert, then rising and distinct, each with the rows that go to it.

    Also where rows were dropped since.
    """
    h, norm, weight = problem(device, dtype, E, 64)
    shared = list(range(E, E + pieces))
    for n in (MAX_ROWS, 3):
        routing = stale_routing(E, top, device, parts=router.splits(64), pieces=pieces)
        router.route_stream(stream_of(h, norm), weight, counts(n, device), EPS, routing)
        for left in (n, n - 1, 1):
            if left < n:
                routing.chosen.fill_(STALE_ID)
                routing.readers.fill_(STALE_ID)
                router.relist(routing, counts(left, device))
            count = int(routing.count)
            assert routing.chosen[:count].tolist() == [
                *shared,
                *routing.ids[:left].unique().tolist(),
            ]
            ids = routing.ids[:left].tolist()
            assert routing.readers[:count].tolist() == [
                sum(1 << i for i, own in enumerate(ids) if expert in own or expert >= E)
                for expert in routing.chosen[:count].tolist()
            ]
            assert (routing.chosen[count:] == STALE_ID).all()
            assert (routing.readers[count:] == STALE_ID).all()


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
def test_fifty_repeats_are_the_same_bits(device, dtype):
    h, norm, weight = problem(device, dtype, 256)
    wanted = routed(h, norm, weight, 8)
    for _ in range(50):
        found = routed(h, norm, weight, 8)
        assert all(torch.equal(a, b) for a, b in zip(by_row(found), by_row(wanted), strict=True))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_what_does_not_fit_is_refused_by_name(device, dtype):
    h, norm, weight = problem(device, dtype)
    stream, rows = stream_of(h, norm), counts(1, device)
    routing = Routing.empty(E, TOP, device)
    for name, arguments in {
        "weight": (stream, weight[:-1], rows, EPS, routing),
        "rows": (stream, weight, rows.long(), EPS, routing),
        "squares": (replace(stream, squares=stream.squares[:2]), weight, rows, EPS, routing),
        "ids": (stream, weight, rows, EPS, replace(routing, ids=routing.ids.long())),
        "shares": (stream, weight, rows, EPS, replace(routing, shares=routing.shares[:8])),
        "arrived": (stream, weight, rows, EPS, replace(routing, arrived=routing.arrived.long())),
    }.items():
        with pytest.raises(ShapeError, match=name):
            router.route_stream(*arguments)
    for name, wrong in {
        "33 of 64": Routing.empty(64, 33, device),
        "33 pieces": Routing.empty(E, TOP, device, pieces=33),
        "4 of 2048": Routing.empty(2048, TOP, device),
        "weights": replace(routing, weights=routing.weights[:, :2]),
        "scale": replace(routing, scale=routing.scale.double()),
        "count": replace(routing, count=routing.count.long()),
        "logits": replace(routing, logits=routing.logits[..., :-1]),
        "words": replace(routing, words=routing.words[:, :8]),
        "chosen": replace(routing, chosen=routing.chosen.long()),
        "readers": replace(routing, readers=routing.readers[:-1]),
        "128 wide, which 3 splits": Routing.empty(E, TOP, device, parts=3),
        "128 wide, which 8 splits": Routing.empty(E, TOP, device, parts=8),
    }.items():
        with pytest.raises(ShapeError, match=name):
            router.route_stream(stream, weight, rows, EPS, wrong)
    for name, table, length in (
        ("steered", routing.ids[:, :2], rows),
        ("length", routing.ids, rows.long()),
    ):
        with pytest.raises(ShapeError, match=name):
            router.route_stream(
                stream, weight, rows, EPS, routing, Steering(table=table, length=length)
            )
