# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""One step of the chunked delta rule's backward pass, in place of a kernel that is wrong.

flash-linear-attention 0.6.0 refuses its Triton kernel chunk_bwd_dqkwg on Hopper with Triton 3.4 to
3.7.0 (wrong results, its issue 640). This backend has the same contract; importing the module
registers it.
"""

import torch
from fla.backends import BaseBackend, register
from torch import Tensor


def gated_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    h: Tensor,
    dh: Tensor,
    dv: Tensor,
    g: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dq, dk [B, T, H, K], dw [B, T, HV, K], dg [B, T, HV]).

    q, k [B, T, H, K]; v (after the delta correction), do, dv [B, T, HV, V]; h, dh [B, chunks, HV,
    K, V]: state at the beginning of a chunk and the gradient at its end; g [B, T, HV]: log2 of the
    decay, summed inside a chunk.
    """
    batch, length, heads, _ = k.shape
    chunks, value_heads = h.shape[1], v.shape[2]
    size, dtype = length // chunks, do.dtype

    def rows(t: Tensor) -> Tensor:  # [B, T, HV, D] -> [B, chunks, HV, size, D]
        return t.view(batch, chunks, size, value_heads, -1).transpose(2, 3)

    def flat(t: Tensor) -> Tensor:
        return t.transpose(2, 3).reshape(batch, length, value_heads, -1)

    groups = value_heads // heads
    q, k = (rows(t.repeat_interleave(groups, 2)) for t in (q, k))
    v, do, dv, g = rows(v).to(dtype), rows(do), rows(dv).to(dtype), rows(g)[..., 0].float()
    last = g[..., -1:]
    dw = -(dv @ h.to(dtype).mT)
    dq = (do @ h.to(dtype).mT).float() * g.exp2()[..., None] * scale
    dk = (v @ dh.to(dtype).mT).float() * (last - g).exp2()[..., None]
    at_last = (h.float() * dh.float()).sum((-1, -2)) * last[..., 0].exp2() + (dk * k).sum((-1, -2))
    place = torch.arange(size, device=q.device)
    ahead = place[:, None] < place
    ratio = (g[..., :, None] - g[..., None, :]).masked_fill(ahead, float("-inf")).exp2()
    ds = ((do @ v.mT).float() * ratio * scale).to(dtype)
    dq = dq + (ds @ k.to(dtype)).float()
    dk = dk + (ds.mT @ q.to(dtype)).float()
    dg = (dq * q).sum(-1) - (dk * k).sum(-1)
    dg = dg + at_last[..., None] * (place == size - 1)
    dq, dk = (flat(t).view(batch, length, heads, groups, -1).sum(3) for t in (dq, dk))
    return dq, dk, flat(dw), flat(dg[..., None])[..., 0]


_compiled = torch.compile(gated_backward, dynamic=False)


@register("common")
class PyTorchBackend(BaseBackend):
    """Serves chunk_bwd_dqkwg alone; everything else stays with the library."""

    backend_type = "pytorch"
    priority = -1

    def chunk_bwd_dqkwg_verifier(
        self, q: Tensor, k: Tensor, **others: object
    ) -> tuple[bool, str | None]:
        """Whole chunks of one length, gated, key-first states."""
        size = others["chunk_size"]
        if (
            others.get("cu_seqlens") is not None
            or others.get("state_v_first")
            or others.get("g") is None
        ):
            return False, "only gated calls of equal lengths with key-first states"
        return k.shape[1] % size == 0, "length must be a multiple of the chunk"

    def chunk_bwd_dqkwg(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        h: Tensor,
        dh: Tensor,
        w: Tensor,
        g: Tensor,
        dv: Tensor,
        scale: float,
        **others: object,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The library's contract."""
        dq, dk, dw, dg = _compiled(q, k, v, do, h, dh, dv, g, scale)
        return dq.to(q.dtype), dk.to(k.dtype), dw.to(w.dtype), dg
