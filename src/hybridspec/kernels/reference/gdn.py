# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Gated DeltaNet over the rows of a block, from the convolution's input to the heads' outputs.

Verification keeps no state per row: it leaves the states as they were and records what each row
would add. `commit` then rebuilds the states of all layers after the accepted rows. What a reader
gets wrong: the decay comes before the read of the old memory, and the output reads the state after
the write.

All but `prepare` and `prefill` also take a leading dimension of requests, with a count for each
([B] instead of []): of qkv, a, b, of one layer's state and records, and behind the layers of what
is committed.

Formulas: design of the delta rule in blocks, arXiv 2412.06464 (Gated Delta Networks), sections 3.2
and 3.3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hybridspec.kernels.reference.activation import sigmoid, silu, softplus
from hybridspec.kernels.reference.norm import HeadGate, gate_heads, l2_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnWeights:
    """What a GDN layer adds to its projections."""

    conv: Tensor
    """[CONV, C] float: depthwise, the last of CONV meets the current row; C = 2 H K + HV V"""
    decay_rate: Tensor
    """[HV] float: exp(A_log)"""
    dt_bias: Tensor
    """[HV] float"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnState:
    """One layer's memory of the rows that were committed; of one request or of several."""

    conv: Tensor
    """[..., CONV - 1, C] float: the last inputs of the convolution, oldest first"""
    recurrent: Tensor
    """[..., HV, K, V] float32"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnRecords:
    """What each row of the last block would add; leading dimensions: layers, requests."""

    inputs: Tensor
    """[..., MAX_ROWS, C] float: inputs of the convolution"""
    keys: Tensor
    """[..., MAX_ROWS, H, K] float32, normalised"""
    updates: Tensor
    """[..., MAX_ROWS, HV, V] float32: u, the corrected values times beta"""
    log_decays: Tensor
    """[..., MAX_ROWS, HV] float32: g, at most 0"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A GDN layer's convolution, as the in-projection applies it to its first C columns."""

    weight: Tensor
    """[CONV, C]: of GdnWeights"""
    past: Tensor
    """[CONV - 1, C]: of GdnState"""
    inputs: Tensor
    """[MAX_ROWS, C], written: of GdnRecords"""
    mixed: Tensor
    """[MAX_ROWS, C] float32, written: after convolution and SiLU"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnRows:
    """Rows after convolution, norms and gates."""

    q: Tensor
    """[N, HV, K], normalised and scaled, repeated to the value heads"""
    k: Tensor
    """[N, HV, K], normalised, repeated to the value heads"""
    v: Tensor
    """[N, HV, V]"""
    beta: Tensor
    """[N, HV]"""
    log_decay: Tensor
    """[N, HV]"""
    keys: Tensor
    """[N, H, K]: k before it is repeated"""


def prepare(qkv: Tensor, a: Tensor, b: Tensor, weights: GdnWeights, state: GdnState) -> GdnRows:
    """Convolution, SiLU, l2-norms and gates.

    qkv  [N, C]    float: queries of all heads, then keys, then values
    a, b [N, HV]   float
    """
    return _of_mixed(convolve(qkv, weights.conv, state.conv), a, b, weights, state)


def _of_mixed(mixed: Tensor, a: Tensor, b: Tensor, weights: GdnWeights, state: GdnState) -> GdnRows:
    HV, K, V = state.recurrent.shape
    H = (mixed.shape[1] - HV * V) // (2 * K)
    q, k, v = mixed.split((H * K, H * K, HV * V), dim=1)
    keys = l2_norm(k.reshape(-1, H, K))
    queries = l2_norm(q.reshape(-1, H, K)) * K**-0.5
    return GdnRows(
        q=queries.repeat_interleave(HV // H, dim=1),
        k=keys.repeat_interleave(HV // H, dim=1),
        v=v.reshape(-1, HV, V),
        beta=sigmoid(b),
        log_decay=-weights.decay_rate * softplus(a + weights.dt_bias),
        keys=keys,
    )


def verify_exact(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
    gate: HeadGate | None = None,
) -> Tensor:
    """Outputs row by row: each equals, bit for bit, what plain decoding computes.

    Arguments as in `prepare`; N = MAX_ROWS; rows [] int32, 0..N. Writes records, leaves the state.
    With a gate, which takes no batch, outputs are gated, and the gate's squares written.
    returns [N, HV, V], zeros from `rows` on
    """
    if qkv.dim() == 3:
        assert gate is None, "a gate takes rows of one request"
        return _each(verify_exact, qkv, a, b, weights, state, records, rows)
    records.inputs[: len(qkv)] = qkv
    return walk(convolve(qkv, weights.conv, state.conv), a, b, weights, state, records, rows, gate)


def walk(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
    gate: HeadGate | None = None,
) -> Tensor:
    """verify_exact behind the convolution; the records' inputs are the convolution's to write.

    mixed [N, C]   float: queries of all heads, then keys, then values, after SiLU
    """
    if gate is not None:
        return gate_heads(walk(mixed, a, b, weights, state, records, rows), gate, rows)
    x = _of_mixed(mixed, a, b, weights, state)
    decays = x.log_decay.exp()
    memory = state.recurrent
    y = torch.zeros_like(x.v)
    updates = torch.zeros_like(x.v)
    for row in range(int(rows)):
        memory = memory * decays[row, :, None, None]
        known = _read(memory, x.k[row])
        updates[row] = x.beta[row, :, None] * (x.v[row] - known)
        memory = _write(memory, x.k[row], updates[row])
        y[row] = _read(memory, x.q[row])
    _record(records, x, updates)
    return y


def verify_block(
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
    gate: HeadGate | None = None,
) -> Tensor:
    """Outputs in block form, one triangular solve instead of a walk.

    Arguments as in `verify_exact`. Rows from `rows` on are not read, and recorded by nothing.
    returns [N, HV, V], zeros from `rows` on
    """
    if qkv.dim() == 3:
        assert gate is None, "a gate takes rows of one request"
        return _each(verify_block, qkv, a, b, weights, state, records, rows)
    if gate is not None:
        return gate_heads(verify_block(qkv, a, b, weights, state, records, rows), gate, rows)
    n = int(rows)
    if not n:
        return qkv.new_zeros(len(qkv), *state.recurrent.shape[::2])
    x = prepare(qkv[:n], a[:n], b[:n], weights, state)
    y, updates, _ = _delta_block(x, state.recurrent)
    records.inputs[:n] = qkv[:n]
    _record(records, x, updates)
    return y if n == len(qkv) else torch.cat((y, y.new_zeros(len(qkv) - n, *y.shape[1:])))


def prefill(qkv: Tensor, a: Tensor, b: Tensor, weights: GdnWeights, state: GdnState) -> Tensor:
    """Outputs [N, HV, V] of rows that are certain: no records, the state moves on in place."""
    x = prepare(qkv, a, b, weights, state)
    y, _, memory = _delta_block(x, state.recurrent)
    state.recurrent.copy_(memory)
    kept = state.conv.shape[0]
    state.conv.copy_(torch.cat((state.conv, qkv))[-kept:])
    return y


def commit(conv: Tensor, recurrent: Tensor, records: GdnRecords, rows: Tensor) -> None:
    """Move the states of all L layers past the first `rows` recorded rows, in place.

    The recurrence of `verify_exact` with the same operations in the same order, so the states are
    equal bit for bit.

    conv      [L, CONV - 1, C]   float
    recurrent [L, HV, K, V]      float32
    rows      []                 int32, 0..MAX_ROWS
    """
    if recurrent.dim() == 5:
        _commit_each(commit, conv, recurrent, records, rows)
        return
    repeats = recurrent.shape[1] // records.keys.shape[2]
    decays = records.log_decays.exp()
    for row in range(int(rows)):
        recurrent.mul_(decays[:, row, :, None, None])
        keys = records.keys[:, row].repeat_interleave(repeats, dim=1)
        recurrent.copy_(_write(recurrent, keys, records.updates[:, row]))
    _keep_inputs(conv, records, rows)


def commit_block(conv: Tensor, recurrent: Tensor, records: GdnRecords, rows: Tensor) -> None:
    """As `commit`, in one product a head; equal to it up to rounding.

    S_r = b_r S_0 + sum of (b_r / b_s) k_s u_s^T over s <= r, b_t the product of the first t decays
    """
    if recurrent.dim() == 5:
        _commit_each(commit_block, conv, recurrent, records, rows)
        return
    r = int(rows)
    if not r:
        return
    total = records.log_decays[:, :r].cumsum(1)
    ratio = (total[:, -1:] - total).exp()
    keys = records.keys[:, :r].repeat_interleave(recurrent.shape[1] // records.keys.shape[2], dim=2)
    recurrent.mul_(total[:, -1, :, None, None].exp())
    writes = (keys * ratio.unsqueeze(-1), records.updates[:, :r])
    recurrent.add_(torch.einsum("lrhk,lrhv->lhkv", *writes))
    _keep_inputs(conv, records, rows)


_Parts = TypeVar("_Parts", GdnState, GdnRecords)


def part(parts: _Parts, place: int | tuple[slice, int]) -> _Parts:
    """A view of one layer or request in all tensors of a state or of records."""
    return type(parts)(**{name: getattr(parts, name)[place] for name in parts.__slots__})


def _each(
    verify: Callable[..., Tensor],
    qkv: Tensor,
    a: Tensor,
    b: Tensor,
    weights: GdnWeights,
    state: GdnState,
    records: GdnRecords,
    rows: Tensor,
) -> Tensor:
    """One request after the other, each as if it were alone."""
    y = [
        verify(qkv[i], a[i], b[i], weights, part(state, i), part(records, i), rows[i])
        for i in range(len(qkv))
    ]
    return torch.stack(y)


def _commit_each(
    move: Callable[..., None], conv: Tensor, recurrent: Tensor, records: GdnRecords, rows: Tensor
) -> None:
    for i in range(len(rows)):
        move(conv[:, i], recurrent[:, i], part(records, (slice(None), i)), rows[i])


def _keep_inputs(conv: Tensor, records: GdnRecords, rows: Tensor) -> None:
    kept = conv.shape[1]
    conv.copy_(torch.cat((conv, records.inputs[:, : int(rows)]), dim=1)[:, -kept:])


def convolve(x: Tensor, weight: Tensor, past: Tensor) -> Tensor:
    """Inputs [N, C] after convolution and SiLU: weight [CONV, C], past [CONV - 1, C]."""
    window = torch.cat((past, x))
    N = x.shape[0]
    total = window[:N] * weight[0]
    for place in range(1, weight.shape[0]):
        total = total + window[place : place + N] * weight[place]
    return silu(total)


def _read(memory: Tensor, x: Tensor) -> Tensor:
    """S^T x of every head: memory [HV, K, V], x [HV, K] -> [HV, V]."""
    return (memory * x.unsqueeze(-1)).sum(-2)


def _write(memory: Tensor, k: Tensor, u: Tensor) -> Tensor:
    """S + k u^T, in two operations: a fused multiply-add would round otherwise."""
    return memory + k.unsqueeze(-1) * u.unsqueeze(-2)


def _delta_block(x: GdnRows, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [N, HV, V], updates [N, HV, V] and the state after all N rows."""
    q, k, v = (t.transpose(0, 1) for t in (x.q, x.k, x.v))  # [HV, N, .]
    beta, total = x.beta.T.unsqueeze(-1), x.log_decay.cumsum(0).T  # [HV, N, 1], [HV, N]
    N = total.shape[1]
    seen = torch.ones(N, N, dtype=torch.bool, device=total.device).tril()
    # masked before exp: a difference above the diagonal is positive and may overflow
    ratio = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~seen, -torch.inf).exp()
    decay = total.exp().unsqueeze(-1)
    system = (beta * ratio * (k @ k.mT)).tril(-1)
    updates = torch.linalg.solve_triangular(
        system, beta * (v - decay * (k @ memory)), upper=False, unitriangular=True
    )
    y = decay * (q @ memory) + (ratio * (q @ k.mT)) @ updates
    after = decay[:, -1:] * memory + (k * ratio[:, -1].unsqueeze(-1)).mT @ updates
    return y.transpose(0, 1), updates.transpose(0, 1), after


def _record(records: GdnRecords, x: GdnRows, updates: Tensor) -> None:
    N = updates.shape[0]
    records.keys[:N] = x.keys
    records.updates[:N] = updates
    records.log_decays[:N] = x.log_decay
