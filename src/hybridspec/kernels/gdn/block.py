# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic, reportGeneralTypeIssues=false
"""GDN of a whole block at once: one triangular solve instead of a walk, one launch in all.

From the convolution's input to y; a program takes BLOCK_V columns of one value head and computes
that head's q and k anew (the other V / BLOCK_V - 1 programs do the same). It reads the state once
and writes none. Rows beyond the count are zero; its time does not depend on the count.

Queries and keys stand below each other in one tile X [2 N, K], so that X S holds what both read of
the old memory, and K X^T what they see of each other. Transposed, with a column for each of the 2 N
rows, the solve is N steps: step s takes column N + s, finished by then, times the coefficients of
key s from all later columns. The first N columns then hold y and the last N hold u. Lanes run along
the columns, so that a step is one exchange. Forward substitution in fp32, as the design asks: the
product form loses two digits where keys repeat.

Products are of three terms of fp16 halves (`rows.halves`) that powers of two keep in range: within
1e-6 of the result, where one tf32 term is off by up to 5e-4 (docs/gdn.md).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from hybridspec.kernels.gdn.rows import (
    convolve4,
    halves,
    log_decay,
    magnitude,
    product,
    sigmoid,
    tap,
    thirds,
)


@triton.jit
def block_kernel(
    x, a, b, weight, rate, bias, past, state, rows,
    y, inputs, updates, keys, log_decays, coefficients, z, norm, squares,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, CONV: tl.constexpr,
    N: tl.constexpr, C: tl.constexpr, X_ROW: tl.constexpr, X_ITEM: tl.constexpr,
    A_ROW: tl.constexpr, A_ITEM: tl.constexpr, BLOCK_V: tl.constexpr, THIRD: tl.constexpr,
    Z_ROW: tl.constexpr, GROUP: tl.constexpr,
    KEEPS_INPUTS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """THIRD: bf16; fp32 in the interpreter, which has no bf16. Z_ROW: 0 without a gate."""
    i_v, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    i_key = i_h // (HV // H)
    row = tl.arange(0, N)
    i = tl.arange(0, 2 * N)  # queries, then keys
    time, is_key = i % N, i >= N
    lane = tl.arange(0, K)[None, :]
    column = i_v * BLOCK_V + tl.arange(0, BLOCK_V)

    S = tl.load(state + ((i_b * HV + i_h) * V + column[:, None]) * K + lane)
    channels = (i_key * K + tl.where(is_key, H * K, 0))[:, None] + lane
    channels_v = (2 * H * K + i_h * V + column)[None, :]
    w3, w2 = tl.load(weight + channels), tl.load(weight + C + channels)
    w1, w0 = tl.load(weight + 2 * C + channels), tl.load(weight + 3 * C + channels)
    wv3, wv2 = tl.load(weight + channels_v), tl.load(weight + C + channels_v)
    wv1, wv0 = tl.load(weight + 2 * C + channels_v), tl.load(weight + 3 * C + channels_v)
    x += i_b * X_ITEM
    past += i_b * (CONV - 1) * C
    gate = i_b * A_ITEM + time * A_ROW + i_h
    offset, decay_rate = tl.load(bias + i_h).to(tl.float32), tl.load(rate + i_h).to(tl.float32)
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()  # not sooner: docs/gdn.md

    n = tl.load(rows + i_b)
    shifted = tl.load(a + gate).to(tl.float32) + offset
    strength = tl.load(b + gate).to(tl.float32)
    strength_v = tl.load(b + i_b * A_ITEM + row * A_ROW + i_h).to(tl.float32)
    x3 = tap(x, past, time, channels, C, X_ROW, 3, CONV)
    x2 = tap(x, past, time, channels, C, X_ROW, 2, CONV)
    x1 = tap(x, past, time, channels, C, X_ROW, 1, CONV)
    x0 = tap(x, past, time, channels, C, X_ROW, 0, CONV)
    v3 = tap(x, past, row, channels_v, C, X_ROW, 3, CONV)
    v2 = tap(x, past, row, channels_v, C, X_ROW, 2, CONV)
    v1 = tap(x, past, row, channels_v, C, X_ROW, 1, CONV)
    v0 = tap(x, past, row, channels_v, C, X_ROW, 0, CONV)
    power, inverse = magnitude(S)
    s_high, s_low = halves(S * inverse)  # while the inputs arrive
    live, live_v = time < n, (row < n)[:, None]
    X = tl.where(live[:, None], convolve4(x3, x2, x1, x0, w3, w2, w1, w0), 0.0)
    # 16 times a unit vector, so that its halves keep their digits
    X = X * (16 * tl.rsqrt(tl.sum(X * X, 1) + 1e-6))[:, None]
    v = convolve4(v3, v2, v1, v0, wv3, wv2, wv1, wv0) * sigmoid(strength_v)[:, None]  # beta v
    v = tl.where(live_v, v, 0.0)
    g = tl.where(live, log_decay(shifted, decay_rate), 0.0)
    beta = tl.where(live, sigmoid(strength), 0.0)
    total = tl.reshape(tl.cumsum(tl.reshape(g, [2, N]), 1), [2 * N])  # log b_t

    if i_v == 0:
        tl.store(log_decays + (i_b * N + time) * HV + i_h, g, mask=live & is_key)
        if i_h % (HV // H) == 0:
            place = ((i_b * N + time)[:, None] * H + i_key) * K + lane
            tl.store(keys + place, X * (1 / 16), mask=(live & is_key)[:, None])
            if KEEPS_INPUTS:
                place = (i_b * N + time)[:, None] * C + channels
                tl.store(inputs + place, x0, mask=live[:, None])

    x_high, x_low = halves(X)
    _, k_high = tl.split(tl.permute(tl.reshape(x_high, [2, N, K]), (1, 2, 0)))
    _, k_low = tl.split(tl.permute(tl.reshape(x_low, [2, N, K]), (1, 2, 0)))
    x_high, x_low = tl.trans(x_high), tl.trans(x_low)
    seen = product(k_high, x_high, i_h, 1)  # [N, 2 N]: each key against all rows
    seen += product(k_high, x_low, i_h, 2) + product(k_low, x_high, i_h, 3)
    Z = product(s_high, x_high, i_h, 4)  # [BLOCK_V, 2 N]: the old memory's answers
    Z += product(s_high, x_low, i_h, 5) + product(s_low, x_high, i_h, 6)

    of_row = row[:, None] == i[None, :]
    total_row = tl.cumsum(tl.sum(tl.where(of_row, g[None, :], 0.0), 1), 0)
    # a key is seen by later keys, and by queries from its own row on; masked before exp
    is_seen = time[None, :] + tl.where(is_key, 0, 1)[None, :] > row[:, None]
    ratio = tl.exp(tl.where(is_seen, total[None, :] - total_row[:, None], -1e30))
    step = seen * ratio * (1 / 256 * tl.where(is_key, beta, -(K**-0.5)))[None, :]
    mine = coefficients + ((i_b * HV + i_h) * (V // BLOCK_V) + i_v) * 2 * N * N
    tl.store(mine + row[:, None] * 2 * N + i[None, :], step)
    tl.debug_barrier()  # the coefficients are read by other threads than wrote them
    of_key = ()
    for s in tl.static_range(N):
        of_key += (tl.load(mine + s * 2 * N + i),)
    Z = Z * (power * (1 / 16) * tl.exp(total) * tl.where(is_key, -beta, K**-0.5))[None, :]
    # values enter as a product, which spares their loads a change of layout
    enters = tl.where(row[:, None] + N == i[None, :], 1.0, 0.0).to(THIRD)
    v_high, v_middle, v_low = thirds(v, THIRD)
    Z += product(tl.trans(v_high), enters, i_h, 7)
    Z += product(tl.trans(v_middle), enters, i_h, 8) + product(tl.trans(v_low), enters, i_h, 9)

    if Z_ROW > 0:
        at = z + time[None, :] * Z_ROW + i_h * V + column[:, None]
        gate = tl.load(at, mask=(live & ~is_key)[None, :], other=0.0).to(tl.float32)
        gated = gate * sigmoid(gate) * tl.load(norm + column).to(tl.float32)[:, None]
    every = tl.zeros([BLOCK_V, 2 * N], tl.int32)
    Z = tl.gather(Z, every + i[None, :], 1)
    for s in tl.static_range(N):
        Z -= tl.gather(Z, every + (N + s), 1) * of_key[s][None, :]

    head = (i_b * N + time)[None, :] * HV + i_h
    out = head * V + column[:, None]
    tl.store(updates + out, Z, mask=(live & is_key)[None, :])
    if Z_ROW > 0:
        parts: tl.constexpr = BLOCK_V // GROUP
        part = i_v * parts + tl.arange(0, parts)
        b_squares = tl.sum(tl.reshape(Z * Z, [parts, GROUP, 2 * N]), 1)
        place = squares + head * (V // GROUP) + part[:, None]
        tl.store(place, b_squares, mask=(live & ~is_key)[None, :])
        Z = Z * gated
    tl.store(y + out, Z, mask=(live & ~is_key)[None, :])
    if KEEPS_INPUTS:
        tl.store(inputs + (i_b * N + row)[:, None] * C + channels_v, v0, mask=live_v)
