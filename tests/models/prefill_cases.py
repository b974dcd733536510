# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a prompt's pass asks of libraries, in plain PyTorch, on any device and dtype."""

import torch
from torch.nn import functional as F

from hybridspec.kernels.reference.gdn import GdnRows, _delta_block
from hybridspec.kernels.reference.norm import l2_norm
from hybridspec.models.prefill_library import Library


def plain_convolved(x, before, weight):
    """Contract of prefill_library.convolved, in float32."""
    window = torch.cat((before, x)).float()
    mixed = sum(window[place : place + len(x)] * own.float() for place, own in enumerate(weight))
    return F.silu(mixed).to(x.dtype)


def plain_delta(q, k, v, log_decay, beta, memory):
    """Contract of prefill_library.chunked by the reference."""
    repeats, scale = v.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    q, k = (l2_norm(x.float()).to(x.dtype) for x in (q, k))
    q, keys = (x.float().repeat_interleave(repeats, dim=1) for x in (q * scale, k))
    x = GdnRows(q=q, k=keys, v=v.float(), beta=beta, log_decay=log_decay, keys=k)
    y, _, after = _delta_block(x, memory)
    return y.to(v.dtype), after


def plain_grouped(x, weight, ends):
    """Contract of prefill_library.grouped, a group at a time."""
    starts = [0, *ends.tolist()[:-1]]
    groups = zip(starts, ends.tolist(), weight, strict=True)
    return torch.cat([F.linear(x[begin:end], own) for begin, end, own in groups])


PLAIN = Library(plain_convolved, plain_delta, plain_grouped)
