# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How far float32 may stand from its float64 judge: the same in CI and at a desk.

A relative distance is norm(found - judge) / norm(judge) of a whole tensor. Each bound is about
four times the largest distance that its tests showed (x86-64, torch 2.13, November 2026), except
LOGITS, PREFILL*, *NEAR_TIE, GDN_STATE and GDN_ROUNDS, which are promised.
"""

import torch
from torch import Tensor

OPERATION = 2e-6
"""norms, rotary, head, router, experts, attention"""
GDN_WALK = 1e-6
"""token by token, outputs and states"""
GDN_BLOCK = 4e-6
"""block form, keys of correlation 1 and beta near 1 included"""
GDN_STATE = 1e-5
"""kernels: records and committed state after one round, block form included"""
GDN_ROUNDS = 1e-4
"""kernels: state after 1,000 rounds of random acceptance"""
GDN_OUTPUTS = {torch.float32: 1e-5, torch.float16: 4e-4, torch.bfloat16: 3e-3}
"""kernels: outputs by dtype, of which half precision rounds half a place, 2e-4 and 1.7e-3"""
ATTENTION = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}
"""kernels: outputs by dtype; queries, keys and shares are rounded to it before their products"""
LOGITS = 1e-4
"""against Transformers, times max(1, largest logit); absolute, element by element"""
DRAFTER = 5e-6
"""a whole drafter pass"""
PREFILL = 1e-4
"""promise 1: any state tensor after rounds, against a fresh prefill of the accepted text"""
PREFILL_BF16 = 2e-2
"""the same on a GPU: a chunked prompt against rows one by one"""
PREFILL_MEDIAN = 2e-5
"""promise 1: the median over state tensors"""
ROUTER_GAP = 1e-5
"""router logits: a position whose k-th and next expert are nearer may be routed otherwise"""
NEAR_TIE = 1e-3
"""fast mode in float32 may choose otherwise only where the two best logits are nearer than this"""

BF16_NEAR_TIE = 0.25
"""products in bfloat16 against float32, embedded pair: a written token's logit may be that far
below the best one; logits spread by 4, and rounding on a CPU moved the gap of two by up to 0.19"""


def distance(found: Tensor, judge: Tensor) -> float:
    """Relative distance of two tensors, in float64."""
    judge = judge.double()
    return float((found.double() - judge).norm() / judge.norm().clamp_min(1e-30))


FUSED = {torch.float32: 5e-5, torch.bfloat16: 6e-2}
"""a whole pass in launches against its reference in float32"""
