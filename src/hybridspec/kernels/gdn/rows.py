# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
# pyright: basic
"""Device functions that the GDN kernels share: convolution, activations, operands of products.

Everything is cast to fp32 on load. Sigmoid is the square of a reciprocal root: three instructions
where a division takes ten, and as exact.
"""

import triton
import triton.language as tl

CONV = 4
"""taps of a convolution"""


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    root = tl.rsqrt(1.0 + tl.exp(-x))
    return root * root


@triton.jit
def log_decay(a, rate):
    """g = -rate softplus(a), at most 0."""
    return -rate * tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(a)))


@triton.jit
def tap(
    x, past, time, channels,
    C: tl.constexpr, X_ROW: tl.constexpr, BACK: tl.constexpr, CONV: tl.constexpr,
):  # fmt: skip
    """Inputs of the convolution BACK rows before `time` [R], at `channels` [R or 1, W].

    Rows before the block lie in past [CONV - 1, C]. Rows beyond those that count are read too, so
    that no load waits for the count; the caller drops them.
    """
    place = time - BACK
    before = past + (place + CONV - 1)[:, None] * C
    return tl.load(tl.where((place < 0)[:, None], before, x + place[:, None] * X_ROW) + channels)


@triton.jit
def load_past(weight, past, row, channel, C: tl.constexpr):
    """Taps [W, 1] of a convolution of four, oldest first, and what rows [1, R] need of its past.

    The latter [W, R] for 3, 2 and 1 rows back, zero where that row is one of the block.
    """
    at = past + row * C + channel
    x3 = tl.load(at, mask=row < 3, other=0.0).to(tl.float32)
    x2 = tl.load(at + C, mask=row < 2, other=0.0).to(tl.float32)
    x1 = tl.load(at + 2 * C, mask=row < 1, other=0.0).to(tl.float32)
    w3, w2 = tl.load(weight + channel), tl.load(weight + C + channel)
    w1, w0 = tl.load(weight + 2 * C + channel), tl.load(weight + 3 * C + channel)
    return x3, x2, x1, w3, w2, w1, w0


@triton.jit
def _back(x, before, BACK: tl.constexpr):
    """Rows [W, 8] that stand BACK places before those of x, the first of them in `before`."""
    row = tl.arange(0, 8)[None, :] + tl.zeros_like(x).to(tl.int32)
    place = (row + 8 - BACK) % 8
    return tl.where(row < BACK, tl.gather(before, place, 1), tl.gather(x, place, 1))


@triton.jit
def convolve_eight(x, before, of_past, is_later):
    """Eight rows [W, 8] after convolution and SiLU; before: the eight before them, if is_later.

    of_past: by `load_past`, for the first eight.
    """
    p3, p2, p1, w3, w2, w1, w0 = of_past
    row = tl.arange(0, 8)[None, :]
    x3 = tl.where((row < 3) & (not is_later), p3, _back(x, before, 3))
    x2 = tl.where((row < 2) & (not is_later), p2, _back(x, before, 2))
    x1 = tl.where((row < 1) & (not is_later), p1, _back(x, before, 1))
    return convolve4(x3, x2, x1, x, w3, w2, w1, w0)


@triton.jit
def convolve4(x3, x2, x1, x0, w3, w2, w1, w0):
    """SiLU of four taps, the oldest first."""
    total = x3.to(tl.float32) * w3.to(tl.float32) + x2.to(tl.float32) * w2.to(tl.float32)
    total += x1.to(tl.float32) * w1.to(tl.float32) + x0.to(tl.float32) * w0.to(tl.float32)
    return total * sigmoid(total)


@triton.jit
def halves(x):
    """x as a sum of two fp16 numbers, 2^-22 of it left over, where 2^-3 < |x| < 2^15.

    Operands of a tensor core. Smaller numbers leave up to 2^-25: scale x by a power of two first.
    """
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def thirds(x, DTYPE: tl.constexpr):
    """x as a sum of three bf16 numbers, nothing left over: for factors that are 0 or 1.

    Rounded by integers, which the compiler converts in pairs.
    """
    high = ((x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)
    rest = x - high
    middle = ((rest.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)
    return high.to(DTYPE), middle.to(DTYPE), (rest - middle).to(DTYPE)


@triton.jit
def magnitude(x):
    """The largest power of two that is no larger than some |x| of the tile, and its reciprocal."""
    exponent = tl.max(tl.abs(x)).to(tl.int32, bitcast=True) & 0x7F800000
    return exponent.to(tl.float32, bitcast=True), (0x7F000000 - exponent).to(
        tl.float32, bitcast=True
    )


@triton.jit
def product(a, b, always, KEY: tl.constexpr):
    """a @ b in a block of its own, entered always: `always` is at least 0, KEY at least 1.

    Products that meet in one block get all warps along one side (Triton 3.6); of 16 or 32 rows
    every warp then repeats what another one does. The compiler drops the condition later on.
    """
    out = tl.zeros([a.shape[0], b.shape[1]], tl.float32)
    if always > -KEY:
        out = tl.dot(a, b, out)
    return out
