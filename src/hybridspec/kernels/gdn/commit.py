# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic
"""The accepted recurrent and convolution state of all layers in one launch.

A program takes BLOCK_V columns of one value head of one layer and request, or, past the last head,
a share of the channels of the convolution. It reads and writes each state once: 126 MB for 30
layers of Qwen3.6-35B-A3B, 32 us at 4.0 TB/s, and the records of the accepted rows.

It must not let the next launch begin early: verification reads the state before it waits.
"""

import triton
import triton.language as tl

from hybridspec.kernels.gdn.rows import halves, magnitude


@triton.jit
def commit_kernel(
    past, state, inputs, keys, updates, log_decays, rows,
    B: tl.constexpr, H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    CONV: tl.constexpr, N: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr, IS_EXACT: tl.constexpr,
):  # fmt: skip
    """IS_EXACT: the recurrence row by row, in the order of exact.walk_kernel; else one product."""
    i_v, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2) % B
    r = tl.load(rows + i_b)
    item = tl.program_id(2).to(tl.int64)  # layer and request
    if i_h < HV:
        lane = tl.arange(0, K)
        column = i_v * BLOCK_V + tl.arange(0, BLOCK_V)
        at_state = state + ((item * HV + i_h) * V + column[:, None]) * K + lane[None, :]
        S = tl.load(at_state)
        i_key = i_h // (HV // H)
        if IS_EXACT:
            at_key = keys + (item * N * H + i_key) * K + lane
            at_update = updates + (item * N * HV + i_h) * V + column
            at_decay = log_decays + item * N * HV + i_h
            k, u, g = tl.load(at_key), tl.load(at_update), tl.load(at_decay)
            for row in range(r):
                ahead = tl.minimum(row + 1, r - 1)
                next_k = tl.load(at_key + ahead * H * K)
                next_u = tl.load(at_update + ahead * HV * V)
                next_g = tl.load(at_decay + ahead * HV)
                S = S * tl.exp(g)
                wide = tl.zeros_like(S)
                S = tl.fma(u[:, None] + wide, k[None, :] + wide, S)
                k, u, g = next_k, next_u, next_g
        else:
            row = tl.arange(0, N)
            live = row < r
            head = (item * N + row) * HV + i_h
            g = tl.load(log_decays + head, mask=live, other=0.0)
            u = tl.load(
                updates + head[None, :] * V + column[:, None], mask=live[None, :], other=0.0
            )
            of_key = ((item * N + row)[:, None] * H + i_key) * K + lane[None, :]
            k = tl.load(keys + of_key, mask=live[:, None], other=0.0)
            last = tl.sum(g, 0)
            u = u * tl.exp(last - tl.cumsum(g, 0))[None, :]
            power, inverse = magnitude(u)
            u_high, u_low = halves(u * inverse)
            k_high, k_low = halves(k * 16)
            added = tl.dot(u_high, k_high) + (tl.dot(u_high, k_low) + tl.dot(u_low, k_high))
            S = S * tl.exp(last) + added * (power * (1 / 16))
        tl.store(at_state, S)
    else:
        place = tl.arange(0, triton.next_power_of_2(CONV - 1))[:, None]
        source = place + r  # of the rows before the block and of the block's, one after the other
        is_kept, is_past = place < CONV - 1, source < CONV - 1
        for first in range(i_v * BLOCK_C, C, BLOCK_C * tl.num_programs(0)):
            channel = first + tl.arange(0, BLOCK_C)[None, :]
            inside = is_kept & (channel < C)
            older = past + (item * (CONV - 1) + source) * C + channel
            newer = inputs + (item * N + source - (CONV - 1)) * C + channel
            kept = tl.load(tl.where(is_past, older, newer), mask=inside)
            tl.debug_barrier()  # all of it is read before any of it is overwritten
            tl.store(past + (item * (CONV - 1) + place) * C + channel, kept, mask=inside)
