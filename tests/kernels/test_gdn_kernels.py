# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The GDN kernels compute what the references promise, and touch nothing else."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.kernels import gdn
from hybridspec.kernels.reference import gdn as reference
from tests.kernels.gdn_cases import (
    EVERY_DTYPE,
    EVERYWHERE,
    ON_CUDA,
    STALE,
    Case,
    Sizes,
    case,
    committed,
    copied,
    counts,
    equal,
    interpreted,
    mapped,
    move,
    stale,
    usual,
)
from tests.tolerances import GDN_OUTPUTS, GDN_STATE, distance

MODES = [
    pytest.param(gdn.verify_exact, gdn.commit, id="exact"),
    pytest.param(gdn.verify_block, gdn.commit_block, id="block"),
]
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
every_dtype = pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
everywhere = pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
modes = pytest.mark.parametrize(("verify", "commit"), MODES)


def agrees(given: Case, verify, commit) -> None:
    """Outputs and records of every request's rows, and the state after all of them."""
    y = verify(*given.arguments())
    exact = given.in_float64()
    wanted = reference.verify_exact(*exact.arguments())
    for i, n in enumerate(given.rows.view(-1).tolist()):
        at = (i, slice(n)) if given.rows.dim() else slice(n)
        assert distance(y[at], wanted[at]) < GDN_OUTPUTS[y.dtype], (i, n)
        assert torch.equal(given.records.inputs[at], given.qkv[at])
        for name in ("keys", "updates", "log_decays"):
            found, right = (getattr(x.records, name)[at] for x in (given, exact))
            assert distance(found, right) < GDN_STATE, (name, i, n)
    found = committed(commit, given, given.records, given.rows)
    right = committed(reference.commit, exact, exact.records, given.rows)
    assert distance(found.recurrent, right.recurrent) < GDN_STATE
    assert torch.equal(found.conv.double(), right.conv)


@every_dtype
@modes
def test_each_request_has_its_own_count_and_every_count_agrees(verify, commit, device, dtype):
    short = (1, 2, 3, 4, 7, 16) if dtype is torch.float16 else range(1, 17)
    given = case(usual(device), device, dtype, requests=(len(short),))
    agrees(given.with_rows(list(short)), verify, commit)


@everywhere
@modes
def test_no_rows_commit_nothing(verify, commit, device, dtype):
    """Beside a request of which some are committed."""
    given = case(usual(device), device, dtype, seed=4, requests=(2,)).with_rows([5, 5])
    verify(*given.arguments())
    found = committed(commit, given, given.records, [0, 3])
    assert torch.equal(found.conv[0], given.state.conv[0])
    assert torch.equal(found.recurrent[0], given.state.recurrent[0])
    assert not torch.equal(found.recurrent[1], given.state.recurrent[1])


@everywhere
@modes
def test_every_number_of_rows_can_be_committed_after_every_length(verify, commit, device, dtype):
    """All pairs of a length and a number of accepted rows, as requests of one launch."""
    sizes = replace(usual(device), V=16)
    longest = 16 if device == "cuda" else 4
    given = case(sizes, device, dtype, seed=1, requests=(longest,))
    given = given.with_rows(range(1, longest + 1))
    verify(*given.arguments())
    exact = given.in_float64()
    reference.verify_exact(*exact.arguments())
    pairs = [(n, r) for n in range(1, longest + 1) for r in range(1, n + 1)]
    place, rows = torch.tensor(pairs, device=device).T
    found, right = (
        committed(
            move,
            replace(x, state=mapped(x.state, lambda t: t[place - 1])),
            mapped(x.records, lambda t: t[place - 1]),
            rows,
        )
        for x, move in ((given, commit), (exact, reference.commit))
    )
    for i, pair in enumerate(pairs):
        assert distance(found.recurrent[i], right.recurrent[i]) < GDN_STATE, pair
        assert torch.equal(found.conv[i].double(), right.conv[i]), pair


@pytest.mark.parametrize(
    "sizes",
    [Sizes(H=1, HV=1, K=16, V=16), Sizes(H=2, HV=4, K=32, V=16), Sizes(H=1, HV=3, K=16, V=32)],
    ids=str,
)
@interpreted
@modes
def test_head_counts_and_widths(verify, commit, sizes):
    agrees(case(sizes, "cpu", torch.float32, seed=2, rows=3), verify, commit)


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(H=1, HV=1, K=16, V=16),
        Sizes(H=3, HV=3, K=16, V=256),
        Sizes(H=2, HV=4, K=256, V=16),
        Sizes(H=5, HV=15, K=32, V=64),
        Sizes(H=1, HV=2, K=64, V=32),
        Sizes(H=3, HV=9, K=128, V=64),
        Sizes(H=16, HV=32, K=128, V=128),
        Sizes(H=1, HV=3, K=256, V=256),
    ],
    ids=str,
)
@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
@modes
def test_head_counts_and_widths_on_the_gpu(verify, commit, device, dtype, sizes):
    given = case(sizes, device, dtype, seed=2, requests=(3,))
    agrees(given.with_rows([1, 11, 16]), verify, commit)


@everywhere
def test_commit_moves_each_layer_and_request_by_its_own_records(device, dtype):
    """Layers in front, then requests: 3 x 2 states in one launch."""
    sizes, rows = usual(device), counts([2, 5], device)
    layers = [case(sizes, device, dtype, seed=20 + i, requests=(2,)) for i in range(3)]
    for layer in layers:
        gdn.verify_block(*replace(layer, rows=rows).arguments())
    states, records = (
        type(getattr(layers[0], x))(
            **{
                name: torch.stack([getattr(getattr(layer, x), name) for layer in layers])
                for name in getattr(layers[0], x).__slots__
            }
        )
        for x in ("state", "records")
    )
    for commit, bound in ((gdn.commit, 0.0), (gdn.commit_block, GDN_STATE)):
        moved = copied(states)  # laid out as the kernels want it
        commit(moved.conv, moved.recurrent, records, rows)
        for i, layer in enumerate(layers):
            alone = committed(gdn.commit, layer, layer.records, rows)
            assert distance(moved.recurrent[i], alone.recurrent) <= bound
            assert torch.equal(moved.conv[i], alone.conv)


@everywhere
@modes
def test_rows_beyond_the_count_are_neither_used_nor_written(verify, commit, device, dtype):
    clean = case(usual(device), device, dtype, seed=3, requests=(2,))
    clean = clean.with_rows([5, 14] if device == "cuda" else [1, 4])
    lengths = clean.rows.tolist()
    inputs = {name: after(getattr(clean, name), lengths, torch.nan) for name in ("qkv", "a", "b")}
    poisoned = replace(clean, **inputs, records=stale(clean.records))
    wanted, y = verify(*clean.arguments()), verify(*poisoned.arguments())
    for i, n in enumerate(lengths):
        assert torch.equal(y[i, :n], wanted[i, :n])
        for name in clean.records.__slots__:
            found, right = (getattr(x.records, name)[i] for x in (poisoned, clean))
            assert torch.equal(found[:n], right[:n]), name
            assert (found[n:] == STALE).all(), name
    for accepted in (lengths, [1, 3]):
        records = mapped(poisoned.records, lambda x: after(x, accepted, torch.nan))  # noqa: B023
        found = committed(commit, poisoned, records, accepted)
        assert equal(found, committed(commit, clean, clean.records, accepted))


def after(x, rows, value):
    """A copy of x [B, N, ...] with this value after the first `rows` of each request."""
    x = x.clone()
    for i, n in enumerate(rows):
        x[i, n:] = value
    return x


@everywhere
@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block], ids=["exact", "block"])
def test_verify_leaves_states_weights_and_inputs_as_they_were(verify, device, dtype):
    given = case(usual(device), device, dtype, seed=4, rows=5)
    held = replace(
        given,
        state=copied(given.state),
        weights=mapped(given.weights, torch.clone),
        **{name: getattr(given, name).clone() for name in ("qkv", "a", "b", "rows")},
    )
    verify(*given.arguments())
    assert equal(given.state, held.state)
    assert equal(given.weights, held.weights)
    for name in ("qkv", "a", "b", "rows"):
        assert torch.equal(getattr(given, name), getattr(held, name)), name


@everywhere
@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block], ids=["exact", "block"])
def test_inputs_that_already_lie_in_the_records_are_used_there(verify, device, dtype):
    apart = case(usual(device), device, dtype, seed=5, requests=(2,)).with_rows([2, 6])
    inputs = apart.qkv.clone()
    inputs[0, 2:] = torch.nan
    there = replace(apart, qkv=inputs, records=replace(stale(apart.records), inputs=inputs))
    wanted, y = verify(*apart.arguments()), verify(*there.arguments())
    assert there.records.inputs is there.qkv
    for i, n in enumerate(apart.rows.tolist()):
        assert torch.equal(y[i, :n], wanted[i, :n])
        for name in apart.records.__slots__:
            found, right = (getattr(x.records, name)[i, :n] for x in (there, apart))
            assert torch.equal(found, right), name
    assert there.qkv[0, 2:].isnan().all()


@everywhere
@pytest.mark.parametrize("requests", [(), (2,)], ids=["one", "requests"])
@modes
def test_inputs_may_be_columns_of_a_wider_tensor(verify, commit, device, dtype, requests):
    given = case(usual(device), device, dtype, seed=6, requests=requests, rows=3)
    C, HV = given.qkv.shape[-1], given.a.shape[-1]
    wide = torch.cat((given.qkv, given.a, given.b, given.a), dim=-1)
    qkv, a, b, _ = wide.split((C, HV, HV, HV), dim=-1)
    assert not a.is_contiguous()
    agrees(replace(given, qkv=qkv, a=a, b=b), verify, commit)


@every_dtype
@pytest.mark.parametrize("requests", [(), (2,)], ids=["one", "requests"])
def test_rounds_of_one_row_are_plain_decoding(device, dtype, requests):
    given = case(usual(device), device, dtype, seed=7, requests=requests, rows=1, N=4)
    exact = given.in_float64()
    for _ in range(4):
        y = gdn.verify_exact(*given.arguments())
        move(gdn.commit, given.state, given.records, given.rows)
        wanted = reference.verify_exact(*exact.arguments())
        move(reference.commit, exact.state, exact.records, exact.rows)
        assert distance(y[..., 0, :, :], wanted[..., 0, :, :]) < GDN_OUTPUTS[dtype]
        assert distance(given.state.recurrent, exact.state.recurrent) < GDN_STATE
        assert torch.equal(given.state.conv.double(), exact.state.conv)
        given, exact = (
            replace(x, **{name: getattr(x, name).roll(-1, -2) for name in ("qkv", "a", "b")})
            for x in (given, exact)
        )
