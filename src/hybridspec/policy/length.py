# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How many rows to read: the most tokens for the time, at the going rate.

A(n) = 1 + S_1 + ... + S_(n-1) tokens are expected of n rows. Tokens per second over a run is a
ratio of sums, so a second is priced at the run's own rate (Dinkelbach). What a reader gets wrong:
the cost is a staircase, so the search looks at every n and never stops at the first descent.
"""

import torch
from torch import Tensor


def expected_tokens(survival: Tensor) -> Tensor:
    """A(1..block) of S_1..S_(block-1): [block - 1] -> [block] float32."""
    return torch.cat((survival.new_ones(1), 1 + survival.cumsum(0)))


def best_length(survival: Tensor, seconds: Tensor, rate: float) -> Tensor:
    """argmax_n A(n) - rate T(n), ties to the shorter: [] int32, 1..block.

    survival [block - 1] float32, seconds [block] float32, rate in tokens a second
    """
    gain = expected_tokens(survival) - rate * seconds
    return gain.argmax().to(torch.int32) + 1


def best_ratio(survival: Tensor, seconds: Tensor) -> tuple[float, float]:
    """A(n) and T(n) where A / T is largest: what the rate starts from before a run has one."""
    tokens = expected_tokens(survival)
    best = int((tokens / seconds).argmax())
    return float(tokens[best]), float(seconds[best])
