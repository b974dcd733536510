# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Layers, rows and judges for the tests of the GDN kernels, on any device.

A judge is the reference in float64, which test_gdn.py holds against the formulas.
"""

from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.launch import INTERPRETED
from hybridspec.kernels.reference import gdn as reference
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState, GdnWeights

TAPS = 4
STALE = 7.0
"""what records hold before a round"""

interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="a CUDA device is visible: kernels do not run in the interpreter"
)
ON_CUDA = [pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu, id="cuda-bf16")]
EVERYWHERE = [
    pytest.param("cpu", torch.float32, marks=interpreted, id="interpreted-fp32"),
    *ON_CUDA,
]
EVERY_DTYPE = [
    *EVERYWHERE,
    pytest.param("cpu", torch.float16, marks=interpreted, id="interpreted-fp16"),
    pytest.param("cuda", torch.float32, marks=pytest.mark.gpu, id="cuda-fp32"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of one layer; H key heads, HV value heads."""

    H: int = 1
    HV: int = 2
    K: int = 16
    V: int = 32

    @property
    def C(self) -> int:  # noqa: N802
        """Channels of the convolution."""
        return 2 * self.H * self.K + self.HV * self.V


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Arguments of a verification; `rows` [B] where there are requests."""

    qkv: Tensor
    a: Tensor
    b: Tensor
    weights: GdnWeights
    state: GdnState
    records: GdnRecords
    rows: Tensor

    def arguments(self):
        return (self.qkv, self.a, self.b, self.weights, self.state, self.records, self.rows)

    def with_rows(self, rows):
        """The same inputs, with new counts and own copies of what a kernel writes."""
        return replace(self, rows=counts(rows, self.qkv.device), **self.fresh())

    def fresh(self):
        return {"state": copied(self.state), "records": stale(self.records)}

    def in_float64(self):
        """A copy of all of it; a kernel's tensor lies otherwise in memory, numbers are the same."""
        floats = {x: getattr(self, x).double() for x in ("qkv", "a", "b")}
        parts = {x: doubled(getattr(self, x)) for x in ("weights", "state", "records")}
        return replace(self, **floats, **parts)


def case(sizes, device, dtype, seed=0, requests=(), rows=MAX_ROWS, N=MAX_ROWS):
    """Gaussian inputs, weights and a state that has seen something; the same on every device."""
    gen = torch.Generator().manual_seed(seed)
    HV, K, V, C = sizes.HV, sizes.K, sizes.V, sizes.C

    def normal(*size, scale=1.0, kind=dtype):
        return (torch.randn(size, generator=gen) * scale).to(kind).to(device)

    return Case(
        qkv=normal(*requests, N, C),
        a=normal(*requests, N, HV),
        b=normal(*requests, N, HV),
        weights=GdnWeights(
            conv=normal(TAPS, C, scale=0.5),
            decay_rate=(torch.rand(HV, generator=gen) * 2 + 0.1).to(device),
            dt_bias=normal(HV, scale=0.5),
        ),
        state=GdnState(
            conv=normal(*requests, TAPS - 1, C),
            recurrent=normal(*requests, HV, V, K, scale=0.3, kind=torch.float32).mT,
        ),
        records=empty_records(sizes, device, dtype, requests, N),
        rows=counts(torch.full(requests, rows), device),
    )


def hard_case(sizes, device, dtype, correlation, beta, alpha, seed=0, requests=()):
    """Keys of this correlation, write strengths between beta[0] and beta[1], decays near alpha.

    The convolution passes the current row alone, and inputs are small, where SiLU is nearly linear.
    """
    gen = torch.Generator().manual_seed(seed + 1)
    plain = case(sizes, device, dtype, seed, requests)
    H, HV, K = sizes.H, sizes.HV, sizes.K
    own = torch.randn(*requests, MAX_ROWS, H * K, generator=gen)
    keys = correlation * torch.randn(H * K, generator=gen) + (1 - correlation**2) ** 0.5 * own
    qkv = plain.qkv.float().cpu()
    qkv = torch.cat((0.05 * qkv[..., : H * K], 0.05 * keys, qkv[..., 2 * H * K :]), dim=-1)
    lanes = (*requests, MAX_ROWS, HV)
    betas = beta[0] + (beta[1] - beta[0]) * torch.rand(lanes, generator=gen)
    # with decay_rate 1 and dt_bias 0, softplus(a) is -log(alpha)
    minus_log = -torch.tensor(alpha).log() * (1 + 0.1 * torch.rand(lanes, generator=gen))
    conv = torch.zeros_like(plain.weights.conv)
    conv[-1] = 1
    one = torch.ones(HV, device=device)
    return replace(
        plain,
        qkv=qkv.to(dtype).to(device),
        a=minus_log.double().expm1().log().to(dtype).to(device),
        b=betas.clamp_max(1 - 1e-6).logit().to(dtype).to(device),
        weights=GdnWeights(conv=conv, decay_rate=one, dt_bias=0 * one),
    )


def empty_records(sizes, device, dtype, leading=(), N=MAX_ROWS):
    def filled(*size, kind=torch.float32):
        return torch.full((*leading, N, *size), STALE, dtype=kind, device=device)

    return GdnRecords(
        inputs=filled(sizes.C, kind=dtype),
        keys=filled(sizes.H, sizes.K),
        updates=filled(sizes.HV, sizes.V),
        log_decays=filled(sizes.HV),
    )


def counts(values, device):
    return torch.as_tensor(values).to(torch.int32).to(device)


def mapped(parts, change):
    """State, records or weights with every tensor changed."""
    return type(parts)(**{f.name: change(getattr(parts, f.name)) for f in fields(parts)})


def copied(state):
    return GdnState(conv=state.conv.clone(), recurrent=laid_out(state.recurrent))


def laid_out(recurrent):
    """A copy that lies as [..., HV, V, K] in memory."""
    return recurrent.mT.clone(memory_format=torch.contiguous_format).mT


def stale(records):
    return mapped(records, lambda x: torch.full_like(x, STALE))


def doubled(parts):
    return mapped(parts, lambda x: x.double().clone())


def move(commit, state, records, rows):
    """Commit one layer, in place."""
    alone = mapped(records, lambda x: x[None])
    commit(state.conv[None], state.recurrent[None], alone, rows)


def committed(commit, given, records, rows):
    """The state of `given` after `rows` of `records`; its own stays."""
    state = copied(given.state)
    move(commit, state, records, counts(rows, state.conv.device))
    return state


def judged(given, rows=None):
    """Outputs of all rows, and the state after `rows` of them, in float64."""
    exact = given.in_float64()
    y = reference.verify_exact(*exact.arguments())
    return y, committed(
        reference.commit, exact, exact.records, given.rows if rows is None else rows
    )


def equal(found, wanted):
    """Bit for bit, tensor by tensor."""
    return all(torch.equal(getattr(found, f.name), getattr(wanted, f.name)) for f in fields(found))


def usual(device):
    """Small in the interpreter; odd heads and the widths of the published models on a GPU."""
    return Sizes(H=3, HV=9, K=128, V=128) if device == "cuda" else Sizes(H=1, HV=2, K=16, V=16)
