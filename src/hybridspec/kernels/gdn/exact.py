# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false
"""GDN token by token in registers: each row equals plain decoding's, bit for bit.

The walk norms, gates and multiplies, one warp a program with BLOCK_V x K of the state in registers:
it reads the state once (2 MiB a layer of Qwen3.6-35B-A3B) and writes none, where stored states cost
2 MiB a row. Plain decoding is the same compiled code at one row, and a commit: a walk that writes
its state in place takes longer (30 layers in 200 us, not 149, H200, November 2026), since every
layer then waits for the writes. In the engine the in-projection convolves; the other launch here
does so for inputs that come from elsewhere.

What a reader gets wrong: the state lies as [V, K] in memory, and as [BLOCK_V, K / 16, 16] over a
warp, four lanes of four numbers along K and eight along V. A sum over K is then two exchanges
between lanes, and q and k are loaded straight into that shape.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.kernels.gdn.rows import convolve4, log_decay, sigmoid, tap


@triton.jit
def convolve_kernel(
    x, weight, past, rows, inputs, mixed,
    N: tl.constexpr, C: tl.constexpr, X_ROW: tl.constexpr, X_ITEM: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr, CONV: tl.constexpr,
    KEEPS_INPUTS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """BLOCK_C channels of BLOCK_N rows, after convolution and SiLU."""
    i_b = tl.program_id(2).to(tl.int64)
    channels = (tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    time = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    x += i_b * X_ITEM
    past += i_b * (CONV - 1) * C
    w3, w2 = tl.load(weight + channels), tl.load(weight + C + channels)
    w1, w0 = tl.load(weight + 2 * C + channels), tl.load(weight + 3 * C + channels)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()  # not sooner: docs/gdn.md
    live = (time < tl.load(rows + i_b))[:, None]
    x3 = tap(x, past, time, channels, C, X_ROW, 3, CONV)
    x2 = tap(x, past, time, channels, C, X_ROW, 2, CONV)
    x1 = tap(x, past, time, channels, C, X_ROW, 1, CONV)
    x0 = tap(x, past, time, channels, C, X_ROW, 0, CONV)
    place = (i_b * N + time)[:, None] * C + channels
    if KEEPS_INPUTS:
        tl.store(inputs + place, x0, mask=live)
    tl.store(mixed + place, convolve4(x3, x2, x1, x0, w3, w2, w1, w0), mask=live)


@triton.jit
def _unit(x):
    """1 / root of the sum of squares of x [., K / LANES_K, LANES_K], for each of the first."""
    return tl.rsqrt(tl.sum(tl.sum(x * x, 1), 1) + 1e-6)


@triton.jit
def walk_kernel(
    state, rows, mixed, a, b, rate, bias, y, updates, keys, log_decays, z, norm, squares,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, N: tl.constexpr,
    C: tl.constexpr, A_ROW: tl.constexpr, A_ITEM: tl.constexpr, Z_ROW: tl.constexpr,
    BLOCK_V: tl.constexpr, LANES_K: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """BLOCK_V columns of one value head, row after row. Z_ROW: 0 without a gate."""
    i_v, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i_key = i_h // (HV // H)
    column = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
    along_v = column[:, None, None]
    along_k = tl.arange(0, K // LANES_K)[None, :, None] * LANES_K
    along_k += tl.arange(0, LANES_K)[None, None, :]
    # [BLOCK_V, K / LANES_K, LANES_K]
    S = tl.load(state + ((i_b * HV + i_h) * V + along_v) * K + along_k)
    decay_rate, offset = tl.load(rate + i_h).to(tl.float32), tl.load(bias + i_h).to(tl.float32)
    if Z_ROW > 0:
        weight = tl.load(norm + column).to(tl.float32)
    if OVERLAPS:
        gdc_launch_dependents()  # what comes next reads weights, and no output of the launch ahead
        gdc_wait()
    n = tl.load(rows + i_b)
    at_q = mixed + i_b * N * C + i_key * K + along_k + 0 * along_v
    at_v = mixed + i_b * N * C + 2 * H * K + i_h * V + column
    at_gate = i_b * A_ITEM + i_h
    head = i_b * N * HV + i_h
    is_keeper = (along_v == 0) & (i_h % (HV // H) == 0)
    q, k, v = tl.load(at_q), tl.load(at_q + H * K), tl.load(at_v)
    strength, shifted = tl.load(b + at_gate), tl.load(a + at_gate)
    z += i_h * V + column
    if Z_ROW > 0:
        gate = tl.load(z).to(tl.float32)
    for row in range(n):
        # the next row is fetched while this one is computed
        ahead = tl.minimum(row + 1, n - 1)
        next_q, next_k = tl.load(at_q + ahead * C), tl.load(at_q + ahead * C + H * K)
        next_v = tl.load(at_v + ahead * C)
        next_strength = tl.load(b + at_gate + ahead * A_ROW)
        next_shifted = tl.load(a + at_gate + ahead * A_ROW)
        g = log_decay(shifted.to(tl.float32) + offset, decay_rate)
        k = k * _unit(k)[:, None, None]
        length = _unit(q) * K**-0.5
        S = S * tl.exp(g)
        known = tl.sum(tl.sum(S * k, 1), 1)
        seen = tl.sum(tl.sum(S * q, 1), 1)
        both = tl.sum(tl.sum(q * k, 1), 1)
        u = sigmoid(strength.to(tl.float32)) * (v - known)
        # fused by hand, as in the commit: there the compiler might fuse the other product
        S = tl.fma(u[:, None, None] + tl.zeros_like(S), k, S)
        seen = (seen + both * u) * length
        out = (head + row * HV) * V + column
        if Z_ROW > 0:
            next_gate = tl.load(z + ahead * Z_ROW).to(tl.float32)
            tl.store(squares + (head + row * HV) * (V // BLOCK_V) + i_v, tl.sum(seen * seen, 0))
            seen = seen * weight * gate * sigmoid(gate)
            gate = next_gate
        tl.store(y + out, seen)
        tl.store(updates + out, u)
        at_key = ((i_b * N + row) * H + i_key) * K
        tl.store(keys + at_key + along_k + 0 * along_v, k, mask=is_keeper)
        tl.store(log_decays + head + row * HV, g, mask=i_v == 0)
        q, k, v, strength, shifted = next_q, next_k, next_v, next_strength, next_shifted
