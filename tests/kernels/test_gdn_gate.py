# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Heads that leave their verification gated, for the product behind it to norm."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import gdn, product
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import gdn as reference
from hybridspec.kernels.reference import product as reference_product
from hybridspec.kernels.reference.norm import HeadGate, Heads, gated_rms_norm
from tests.kernels.gdn_cases import (
    EVERY_DTYPE,
    EVERYWHERE,
    ON_CUDA,
    STALE,
    Sizes,
    case,
    equal,
    interpreted,
    stale,
    usual,
)
from tests.kernels.stream_cases import (
    EPS,
    NAN,
    doubled,
    few_counts,
    numbers,
    stream_of,
    unwritten,  # noqa: F401
)
from tests.tolerances import GDN_OUTPUTS, GDN_STATE, GDN_WALK, distance

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.usefixtures("unwritten"),
]
every_dtype = pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
everywhere = pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
forms = pytest.mark.parametrize(
    "verify", [gdn.verify_exact, gdn.verify_block], ids=["exact", "block"]
)
BEFORE = 8
"""columns of a wider matrix on each side of z"""


def gate_of(given):
    """z among other columns, the heads' norm, and squares that nothing has written."""
    HV, K, V = given.state.recurrent.shape
    device, dtype = given.qkv.device, given.qkv.dtype
    wide = numbers(device, dtype, MAX_ROWS, HV * V + 2 * BEFORE, seed=41)
    return HeadGate(
        z=wide[:, BEFORE:-BEFORE].view(MAX_ROWS, HV, V),
        weight=numbers(device, dtype, V, seed=42, scale=0.3) + 1,
        squares=torch.full((MAX_ROWS, HV, gdn.head_groups(K, V)), NAN, device=device),
    )


def without_stale(given, gate, n):
    """The first n rows of both; NaN in all others."""
    inputs = {x: getattr(given, x).clone() for x in ("qkv", "a", "b")}
    wide = gate.z.new_full((MAX_ROWS, gate.z[0].numel() + BEFORE), NAN)
    z = wide[:, BEFORE:].view_as(gate.z)
    z[:n] = gate.z[:n]
    for x in inputs.values():
        x[n:] = NAN
    squares = torch.full_like(gate.squares, NAN)
    return replace(given.with_rows(n), **inputs), replace(gate, z=z, squares=squares)


def judged(given, gate):
    """Gated outputs, squares and records in float64."""
    exact = given.in_float64()
    gate = doubled(gate)
    y = reference.verify_exact(*exact.arguments(), gate)
    return y, gate.squares, exact.records


def check_agreement(verify, given, gate, n):
    """The first n rows against float64; no other is read or written."""
    wanted, squares, records = judged(given.with_rows(n), gate)
    now, own = without_stale(given, gate, n)
    y = verify(*now.arguments(), own)
    assert y.dtype == given.qkv.dtype
    assert distance(y[:n], wanted[:n]) < GDN_OUTPUTS[y.dtype]
    assert distance(own.squares[:n], squares[:n]) < GDN_STATE
    assert y[n:].isnan().all()
    assert own.squares[n:].isnan().all()
    assert (now.records.updates[n:] == STALE).all()
    for name in ("keys", "updates", "log_decays"):
        found, right = (getattr(x, name)[:n] for x in (now.records, records))
        assert distance(found, right) < GDN_STATE, name


@every_dtype
@forms
def test_gated_heads_equal_float64_at_every_number_of_rows(verify, device, dtype):
    given = case(usual(device), device, dtype, seed=40)
    gate = gate_of(given)
    for n in few_counts(device):
        check_agreement(verify, given, gate, n)


@pytest.mark.parametrize(
    "sizes", [Sizes(K=32, V=16), Sizes(H=2, HV=4, K=16, V=64), Sizes(K=256, V=16)], ids=str
)
@interpreted
@forms
def test_gated_heads_of_other_widths(verify, sizes):
    given = case(sizes, "cpu", torch.float32, seed=43)
    check_agreement(verify, given, gate_of(given), 3)


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(H=1, HV=1, K=16, V=16),
        Sizes(H=3, HV=3, K=16, V=256),
        Sizes(H=2, HV=4, K=256, V=32),
        Sizes(H=1, HV=2, K=64, V=32),
        Sizes(H=16, HV=32, K=128, V=128),
    ],
    ids=str,
)
@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
@forms
def test_gated_heads_of_other_widths_on_the_gpu(verify, device, dtype, sizes):
    given = case(sizes, device, dtype, seed=43)
    for n in (1, 8, 9, MAX_ROWS):
        check_agreement(verify, given, gate_of(given), n)


@everywhere
@forms
def test_a_gate_changes_outputs_alone(verify, device, dtype):
    """Records and, before the gate, outputs are those of a verification without one."""
    given = case(usual(device), device, dtype, seed=44, rows=11)
    gate, plain = gate_of(given), given.with_rows(11)
    y, gated = verify(*plain.arguments())[:11], verify(*given.arguments(), gate)[:11]
    for name in plain.records.__slots__:
        found, right = (getattr(x.records, name)[:11] for x in (given, plain))
        assert distance(found, right) < GDN_WALK, name
    z = gate.z[:11].double()
    assert distance(gated, y.double() * gate.weight * z * z.sigmoid()) < 2 * GDN_OUTPUTS[dtype]
    groups = y.double().unflatten(-1, (gate.squares.shape[-1], -1))
    assert distance(gate.squares[:11], groups.square().sum(-1)) < 2 * GDN_OUTPUTS[dtype]


@everywhere
def test_a_gated_row_of_the_walk_is_the_same_bits_in_every_length(device, dtype):
    given = case(usual(device), device, dtype, seed=45)
    gate = gate_of(given)
    wanted = gdn.verify_exact(*given.arguments(), gate)
    for n in few_counts(device):
        now, own = without_stale(given, gate, n)
        assert torch.equal(gdn.verify_exact(*now.arguments(), own)[:n], wanted[:n])
        assert torch.equal(own.squares[:n], gate.squares[:n])


@everywhere
@forms
def test_no_rows_write_nothing(verify, device, dtype):
    given = case(usual(device), device, dtype, seed=46, rows=0)
    gate = gate_of(given)
    assert verify(*given.arguments(), gate).isnan().all()
    assert gate.squares.isnan().all()


@pytest.mark.parametrize(("device", "dtype"), ON_CUDA)
@forms
def test_fifty_repeats_are_the_same_bits(verify, device, dtype):
    given = case(usual(device), device, dtype, seed=47, rows=13)
    gate = gate_of(given)
    wanted = verify(*given.arguments(), gate)[:13]
    squares = gate.squares.clone()
    for _ in range(50):
        assert torch.equal(verify(*given.arguments(), gate)[:13], wanted)
        assert torch.equal(gate.squares[:13], squares[:13])


@every_dtype
@forms
def test_gate_and_product_equal_the_gated_norm_and_its_product(verify, device, dtype):
    """The whole way from verification to the stream, against float64 in the usual order."""
    D = 48
    sizes = usual(device) if device == "cuda" else Sizes(H=1, HV=3, K=16, V=32)
    given = case(sizes, device, dtype, seed=48)
    gate, h = gate_of(given), torch.zeros(MAX_ROWS, D, device=device)
    norm = numbers(device, dtype, D, seed=49) + 1
    weight = numbers(device, dtype, D, sizes.HV * sizes.V, seed=50, scale=0.1)
    exact = given.in_float64()
    y = reference.verify_exact(*exact.arguments())
    x = gated_rms_norm(y, gate.z.double(), gate.weight.double(), EPS).flatten(1)
    for n in (3, 9) if device == "cpu" else (1, 8, 9, MAX_ROWS):
        now, own = without_stale(given, gate, n)
        rows = verify(*now.arguments(), own)
        held, wanted = stream_of(h[:n], norm), doubled(stream_of(h[:n], norm))
        heads = Heads(rows=rows, squares=own.squares)
        product.project_heads_onto(heads, weight, now.rows, EPS, held, norm)
        reference_product.project_onto(x, weight.double(), now.rows, wanted, norm.double())
        assert distance(held.residual[:n], wanted.residual[:n]) < 1.5 * GDN_OUTPUTS[dtype]
        assert held.residual[n:].isnan().all()


@forms
def test_a_gate_that_does_not_fit_is_refused_by_name(verify):
    given = case(Sizes(), "cpu", torch.float32, rows=1)
    gate = gate_of(given)
    for name, wrong in {
        "z must be torch.float32": replace(gate, z=gate.z.half()),
        "z must be": replace(gate, z=gate.z[:8]),
        "its heads one after another": replace(gate, z=gate.z.mT.contiguous().mT),
        "norm": replace(gate, weight=gate.weight[:-1]),
        "squares must be float32": replace(gate, squares=gate.squares.double()),
        "squares": replace(gate, squares=gate.squares[..., :1]),
    }.items():
        with pytest.raises(ShapeError, match=name):
            verify(*given.arguments(), wrong)
    assert equal(given.records, stale(given.records))  # before any launch


@forms
def test_a_gate_takes_no_batch(verify):
    given = case(Sizes(), "cpu", torch.float32, requests=(2,), rows=1)
    gate = gate_of(case(Sizes(), "cpu", torch.float32))
    with pytest.raises(ShapeError, match="one request"):
        verify(*given.arguments(), gate)
    with pytest.raises(AssertionError, match="one request"):
        getattr(reference, verify.__name__)(*given.arguments(), gate)
