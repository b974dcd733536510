# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Delta rule and grouped product of a prompt's pass by the reference, on any device and dtype."""

import torch
from torch.nn import functional as F

from hybridspec.kernels.reference.gdn import GdnRows, _delta_block


def plain_delta(q, k, v, log_decay, beta, memory):
    """Contract of prefill.chunked by the reference."""
    repeats, scale = v.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    q, keys = (x.float().repeat_interleave(repeats, dim=1) for x in (q * scale, k))
    x = GdnRows(q=q, k=keys, v=v.float(), beta=beta, log_decay=log_decay, keys=k)
    y, _, after = _delta_block(x, memory)
    return y.to(v.dtype), after


def plain_grouped(x, weight, ends):
    """Contract of prefill.grouped, a group at a time."""
    starts = [0, *ends.tolist()[:-1]]
    groups = zip(starts, ends.tolist(), weight, strict=True)
    return torch.cat([F.linear(x[begin:end], own) for begin, end, own in groups])
