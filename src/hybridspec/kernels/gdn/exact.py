# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false
"""GDN token by token in registers: each row equals plain decoding's, bit for bit.

Two launches. The first convolves, norms and gates, BLOCK_N rows of a head a program. The second
walks, one warp a program with BLOCK_V x K of the state in registers: it reads the state once (2 MiB
a layer of Qwen3.6-35B-A3B) and writes none, where stored states cost 2 MiB a row. Plain decoding is
the same compiled code at one row, and a commit: a walk that writes its state in place takes longer
(30 layers in 200 us, not 149, H200, November 2026), since every layer then waits for the writes.

What a reader gets wrong: the state lies as [V, K] in memory, and as [BLOCK_V, K / 16, 16] over a
warp, four lanes of four numbers along K and eight along V. A sum over K is then two exchanges
between lanes, and q and k are loaded straight into that shape.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.kernels.gdn.rows import convolve4, log_decay, sigmoid, tap


@triton.jit
def _convolved(
    x, past, weight, rows, inputs, i_b, time, FIRST,
    WIDTH: tl.constexpr, CONV: tl.constexpr, N: tl.constexpr, C: tl.constexpr, X_ROW: tl.constexpr,
    KEEPS_INPUTS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """WIDTH channels from FIRST on, after convolution and SiLU; which rows count."""
    channels = (FIRST + tl.arange(0, WIDTH))[None, :]
    w3, w2 = tl.load(weight + channels), tl.load(weight + C + channels)
    w1, w0 = tl.load(weight + 2 * C + channels), tl.load(weight + 3 * C + channels)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()  # not sooner: docs/gdn.md
    live = time < tl.load(rows + i_b)
    x3 = tap(x, past, time, channels, C, X_ROW, 3, CONV)
    x2 = tap(x, past, time, channels, C, X_ROW, 2, CONV)
    x1 = tap(x, past, time, channels, C, X_ROW, 1, CONV)
    x0 = tap(x, past, time, channels, C, X_ROW, 0, CONV)
    if KEEPS_INPUTS:
        tl.store(inputs + (i_b * N + time)[:, None] * C + channels, x0, mask=live[:, None])
    return convolve4(x3, x2, x1, x0, w3, w2, w1, w0), live


@triton.jit
def prepare_kernel(
    x, a, b, weight, rate, bias, past, rows, inputs, queries, values, gates, keys, log_decays,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CONV: tl.constexpr,
    N: tl.constexpr, C: tl.constexpr, X_ROW: tl.constexpr, X_ITEM: tl.constexpr,
    A_ROW: tl.constexpr, A_ITEM: tl.constexpr, BLOCK_N: tl.constexpr,
    KEEPS_INPUTS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One head's q, k or v; the programs of v compute the gates as well."""
    i_head, i_b = tl.program_id(0), tl.program_id(2).to(tl.int64)
    time = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = i_b * N + time
    x += i_b * X_ITEM
    past += i_b * (CONV - 1) * C
    if i_head < 2 * H:
        mixed, live = _convolved(
            x, past, weight, rows, inputs, i_b, time, i_head * K,
            K, CONV, N, C, X_ROW, KEEPS_INPUTS, OVERLAPS,
        )  # fmt: skip
        mixed = mixed * tl.rsqrt(tl.sum(mixed * mixed, 1) + 1e-6)[:, None]
        lane = tl.arange(0, K)[None, :]
        if i_head < H:
            place = (at * H + i_head)[:, None] * K + lane
            tl.store(queries + place, mixed * K**-0.5, mask=live[:, None])
        else:
            place = (at * H + i_head - H)[:, None] * K + lane
            tl.store(keys + place, mixed, mask=live[:, None])
    else:
        i_h = i_head - 2 * H
        value, live = _convolved(
            x, past, weight, rows, inputs, i_b, time, 2 * H * K + i_h * V,
            V, CONV, N, C, X_ROW, KEEPS_INPUTS, OVERLAPS,
        )  # fmt: skip
        head = at * HV + i_h
        tl.store(values + head[:, None] * V + tl.arange(0, V)[None, :], value, mask=live[:, None])
        gate = i_b * A_ITEM + time * A_ROW + i_h
        shifted = tl.load(a + gate).to(tl.float32) + tl.load(bias + i_h).to(tl.float32)
        g = log_decay(shifted, tl.load(rate + i_h).to(tl.float32))
        tl.store(log_decays + head, g, mask=live)
        tl.store(gates + head * 2, sigmoid(tl.load(b + gate).to(tl.float32)), mask=live)
        tl.store(gates + head * 2 + 1, tl.exp(g), mask=live)


@triton.jit
def walk_kernel(
    state, rows, queries, keys, values, gates, y, updates, z, norm, squares,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, N: tl.constexpr,
    Z_ROW: tl.constexpr, BLOCK_V: tl.constexpr, LANES_K: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """BLOCK_V columns of one value head, row after row. Z_ROW: 0 without a gate."""
    i_v, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    column = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    along_v = column[:, None, None]
    along_k = tl.arange(0, K // LANES_K)[None, :, None] * LANES_K
    along_k += tl.arange(0, LANES_K)[None, None, :]
    # [BLOCK_V, K / LANES_K, LANES_K]
    S = tl.load(state + ((i_b * HV + i_h) * V + along_v) * K + along_k)
    z += i_h * V + column
    if Z_ROW > 0:  # written by the launch ahead of the one that this waits for
        gate, weight = tl.load(z).to(tl.float32), tl.load(norm + column).to(tl.float32)
    if OVERLAPS:
        gdc_launch_dependents()  # what comes next reads weights, and no output of `prepare`
        gdc_wait()
    n = tl.load(rows + i_b)
    at_key = (i_b * N * H + i_h // (HV // H)) * K + along_k + 0 * along_v
    head = i_b * N * HV + i_h
    q, k = tl.load(queries + at_key), tl.load(keys + at_key)
    v = tl.load(values + head * V + column)
    beta, alpha = tl.load(gates + head * 2), tl.load(gates + head * 2 + 1)
    for row in range(n):
        # the next row is fetched while this one is computed
        ahead = tl.minimum(row + 1, n - 1)
        next_q = tl.load(queries + at_key + ahead * H * K)
        next_k = tl.load(keys + at_key + ahead * H * K)
        next_v = tl.load(values + (head + ahead * HV) * V + column)
        next_beta = tl.load(gates + (head + ahead * HV) * 2)
        next_alpha = tl.load(gates + (head + ahead * HV) * 2 + 1)
        S = S * alpha
        known = tl.sum(tl.sum(S * k, 1), 1)
        seen = tl.sum(tl.sum(S * q, 1), 1)
        both = tl.sum(tl.sum(q * k, 1), 1)
        u = beta * (v - known)
        # fused by hand, as in the commit: there the compiler might fuse the other product
        S = tl.fma(u[:, None, None] + tl.zeros_like(S), k, S)
        out = (head + row * HV) * V + column
        seen += both * u
        if Z_ROW > 0:
            next_gate = tl.load(z + ahead * Z_ROW).to(tl.float32)
            tl.store(squares + (head + row * HV) * (V // BLOCK_V) + i_v, tl.sum(seen * seen, 0))
            seen = seen * weight * gate * sigmoid(gate)
            gate = next_gate
        tl.store(y + out, seen)
        tl.store(updates + out, u)
        q, k, v, beta, alpha = next_q, next_k, next_v, next_beta, next_alpha
