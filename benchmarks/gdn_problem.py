# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What every arm of gdn_verify.py is given, how an arm looks, and the check that it computes right.

The check follows each arm's own rounding: q, k and v of the recurrence are the arm's own output of
its convolution, so that the state must agree to fp32 rounding.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from hybridspec.kernels.reference.activation import sigmoid, silu, softplus
from hybridspec.kernels.reference.norm import gated_rms_norm, l2_norm

Scope = Literal["delta", "whole", "whole+norm"]
EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one GDN layer; the defaults are Qwen3.6-35B-A3B."""

    H: int = 16
    HV: int = 32
    K: int = 128
    V: int = 128
    CONV: int = 4

    @property
    def channels(self) -> int:
        """C of the convolution: queries, keys, values."""
        return 2 * self.H * self.K + self.HV * self.V


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights and inputs of one layer."""

    conv: Tensor
    """[C, CONV]"""
    A_log: Tensor
    """[HV] float32"""
    dt_bias: Tensor
    """[HV]"""
    norm: Tensor
    """[V]"""
    qkv: Tensor
    """[B N, C]: input of the convolution"""
    mixed: Tensor
    """[B N, C]: its output, where the scope starts behind it"""
    a: Tensor
    """[B N, HV]"""
    b: Tensor
    """[B N, HV]"""
    z: Tensor
    """[B N, HV, V]"""


@dataclass(slots=True, kw_only=True)
class Problem:
    """One round: B sequences of N rows, of which `accepted` are committed, through all layers."""

    rows: int
    batch: int
    accepted: int
    scope: Scope
    device: torch.device
    layers: int = 30
    shape: Shape = field(default_factory=Shape)
    dtype: torch.dtype = torch.bfloat16
    seed: int = 0
    scratch: Tensor | None = None
    """flat float32 of finite values that all arms may share, where a set of each does not fit"""

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(self.seed)
        self.accepted_rows = torch.full(
            (self.batch,), self.accepted, dtype=torch.int32, device=self.device
        )
        self.starts = self.rows * torch.arange(
            self.batch + 1, dtype=torch.int32, device=self.device
        )
        self.weights = [self._layer() for _ in range(self.layers)]

    generator: torch.Generator = field(init=False)
    accepted_rows: Tensor = field(init=False)
    """[B] int32"""
    starts: Tensor = field(init=False)
    """[B + 1] int32: first row of each sequence, and the end"""
    weights: list[Layer] = field(init=False)

    def normal(self, *size: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Gaussian numbers from the problem's own generator."""
        filled = torch.empty(size, dtype=dtype or self.dtype, device=self.device)
        return filled.normal_(0, scale, generator=self.generator)

    def states(self, *size: int) -> Tensor:
        """Recurrent states, float32 and bounded: shared ones where `scratch` holds enough."""
        count = torch.Size(size).numel()
        if self.scratch is not None and count <= self.scratch.numel():
            return self.scratch[:count].view(size)
        return self.normal(*size, scale=0.1, dtype=torch.float32)

    def _layer(self) -> Layer:
        s, rows = self.shape, self.batch * self.rows
        return Layer(
            conv=self.normal(s.channels, s.CONV, scale=0.5),
            A_log=self.normal(s.HV, dtype=torch.float32) - 1,
            dt_bias=self.normal(s.HV),
            norm=1 + self.normal(s.V, scale=0.1),
            qkv=self.normal(rows, s.channels),
            mixed=self.normal(rows, s.channels),
            a=self.normal(rows, s.HV),
            b=self.normal(rows, s.HV),
            z=self.normal(rows, s.HV, s.V),
        )


class Arm(Protocol):
    """One way to verify and commit a round."""

    name: str
    problem: Problem
    touched: int
    """bytes of state that a round reads or writes at different places"""
    mixed: list[Tensor] | None
    """[B N, C] a layer: output of the convolution of the last round; None where it stays inside"""
    y: list[Tensor]
    """[B N, HV, V] a layer: output of the last round"""
    state_tolerance: float
    """error of the committed state, relative to its largest element"""

    def round(self) -> None:
        """Enqueue all layers and the commit on the current stream; no synchronisation."""
        ...

    def recurrent(self, layer: int, sequence: int) -> Tensor:
        """[HV, K, V] float32: the state that the next round of this sequence would read."""
        ...

    def conv(self, layer: int, sequence: int) -> Tensor:
        """[CONV - 1, C]: the last inputs of the convolution, oldest first."""
        ...


class WrongResultError(Exception):
    """An arm does not compute what it should."""


def check(arm: Arm, y_tolerance: float = 2e-2) -> dict[str, float]:
    """Run one round; the largest errors, relative to the largest element expected.

    Looks at the first and the last layer and sequence. Raises WrongResultError beyond
    the tolerances.
    """
    problem = arm.problem
    places = [
        (layer, sequence)
        for layer in sorted({0, problem.layers - 1})
        for sequence in sorted({0, problem.batch - 1})
    ]
    before = {at: (arm.recurrent(*at).clone(), arm.conv(*at).clone()) for at in places}
    arm.round()
    if problem.device.type == "cuda":
        torch.cuda.synchronize()
    worst = {"mixed": 0.0, "y": 0.0, "recurrent": 0.0, "conv": 0.0}
    for at in places:
        for name, error in _errors(arm, at, *before[at]).items():
            worst[name] = max(worst[name], error)
    limits = {"mixed": 2e-2, "y": y_tolerance, "recurrent": arm.state_tolerance, "conv": 0.0}
    if any(not worst[name] <= limits[name] for name in worst):
        raise WrongResultError(f"{arm.name}: errors {worst}, tolerated {limits}")
    return worst


def _errors(arm: Arm, at: tuple[int, int], recurrent: Tensor, window: Tensor) -> dict[str, float]:
    problem, (layer, sequence) = arm.problem, at
    weights = problem.weights[layer]
    rows = slice(sequence * problem.rows, (sequence + 1) * problem.rows)
    errors: dict[str, float] = {}
    mixed = weights.mixed[rows].double()
    if problem.scope != "delta":
        seen = torch.cat((window, weights.qkv[rows]))
        mixed = _convolve(seen.double(), weights.conv.double().T)
        after = seen[problem.accepted : problem.accepted + window.shape[0]]
        errors["conv"] = _error(arm.conv(*at), after)
        if arm.mixed is not None:
            own = arm.mixed[layer].view(-1, problem.shape.channels)[rows]
            errors["mixed"] = _error(own, mixed)
            mixed = own.double()
    y, state = _delta(problem, weights, mixed, rows, recurrent.double())
    if problem.scope == "whole+norm":
        y = gated_rms_norm(
            y.to(problem.dtype).double(), weights.z[rows].double(), weights.norm.double(), EPS
        )
    errors["y"] = _error(arm.y[layer].reshape(-1, problem.shape.HV, problem.shape.V)[rows], y)
    errors["recurrent"] = _error(arm.recurrent(*at), state)
    return errors


def _convolve(seen: Tensor, weight: Tensor) -> Tensor:
    """[CONV - 1 + N, C] and [CONV, C] -> [N, C]."""
    rows = seen.shape[0] - weight.shape[0] + 1
    return silu(sum(seen[place : place + rows] * weight[place] for place in range(len(weight))))


def _delta(
    problem: Problem, weights: Layer, mixed: Tensor, rows: slice, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [N, HV, V] and the state [HV, K, V] after the accepted rows, in float64."""
    s = problem.shape
    q, k, v = mixed.split((s.H * s.K, s.H * s.K, s.HV * s.V), dim=1)
    repeats = s.HV // s.H
    q = (l2_norm(q.view(-1, s.H, s.K)) * s.K**-0.5).repeat_interleave(repeats, dim=1)
    k = l2_norm(k.view(-1, s.H, s.K)).repeat_interleave(repeats, dim=1)
    v = v.view(-1, s.HV, s.V)
    beta = sigmoid(weights.b[rows].double())
    rate = weights.A_log.double().exp()
    decay = (-rate * softplus(weights.a[rows].double() + weights.dt_bias.double())).exp()
    y, committed = torch.empty_like(v), state
    for row in range(problem.rows):
        state = state * decay[row, :, None, None]
        known = (state * k[row].unsqueeze(-1)).sum(-2)
        update = beta[row, :, None] * (v[row] - known)
        state = state + k[row].unsqueeze(-1) * update.unsqueeze(-2)
        y[row] = (state * q[row].unsqueeze(-1)).sum(-2)
        if row + 1 == problem.accepted:
            committed = state
    return y, committed


def _error(found: Tensor, wanted: Tensor) -> float:
    """Infinity where an element is not a number, which no tolerance admits."""
    wanted = wanted.double()
    error = float((found.double() - wanted).abs().max() / wanted.abs().max())
    return error if error == error else float("inf")
