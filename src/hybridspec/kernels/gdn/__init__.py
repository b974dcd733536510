# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Gated DeltaNet in Triton: names, signatures and contracts of kernels.reference.gdn.

Counts are read on the device, so that one captured graph serves every length. Tensors may have a
leading dimension of requests, each with its own count, unless heads are gated. State is fp32 and
lies as [..., HV, V, K] in memory: `recurrent` is its transposed view. Where qkv is `records.inputs`
itself, as a projection may write it, nothing is copied.
"""

from hybridspec.kernels.gdn.launches import (
    WIDTHS,
    commit,
    commit_block,
    head_groups,
    verify_block,
    verify_exact,
    walk,
)

__all__ = [
    "WIDTHS",
    "commit",
    "commit_block",
    "head_groups",
    "verify_block",
    "verify_exact",
    "walk",
]
