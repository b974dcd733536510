# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""One decode step of the target for many sequences in lockstep, fit for a CUDA graph."""

from dataclasses import replace

import target_model as model
import torch
import torch.nn.functional as F
from target_forward import Target, identity
from target_model import Shape, Weights
from torch import Tensor


def gdn_step(
    x: Tensor, state: Tensor, tail: Tensor, layer: Weights, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """(layer output [B, 1, H], new state [B, HV, K, V] fp32, new tail [B, 3, C]) for one token."""
    qkv, z, g, beta = model.gdn_projections(x, layer, shape)
    window = torch.cat([tail, qkv.to(tail.dtype)], 1)
    q, k, v = (t[:, 0].float() for t in model.gdn_convolved(window, layer, shape))
    repeat = shape.value_heads // shape.key_heads
    q, k = (t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(repeat, 1) for t in (q * shape.delta_dim**-0.5, k))
    state = state * g[:, 0].exp()[..., None, None]
    read = (state * k[..., None]).sum(-2)
    update = beta[:, 0, :, None] * (v - read)
    state = state + k[..., None] * update[..., None, :]
    y = (state * q[..., None]).sum(-2)
    out, _ = model.gdn_after(x, y[:, None], z, layer, shape)
    return out, state, window[:, 1:]


class Decoder:
    """Buffers for batch sequences of length tokens, and the step that fills them.

    tokens       [batch, length] int64, prompt in front
    position     [] int64, index of the last token known
    temperature  [batch, 1] fp32, 0 for greedy
    """

    def __init__(self, target: Target, batch: int, length: int) -> None:
        self.target, shape = target, target.shape
        device = target.top["lm_head.weight"].device
        self.tokens = torch.zeros(batch, length, dtype=torch.long, device=device)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.temperature = torch.zeros(batch, 1, device=device)
        channels = 2 * shape.key_width + shape.value_width
        kv = (batch, shape.kv_heads, length, shape.head_dim)
        state = (batch, shape.value_heads, shape.delta_dim, shape.delta_dim)
        self.caches = [
            tuple(torch.zeros(kv, dtype=shape.dtype, device=device) for _ in range(2))
            if full
            else (
                torch.zeros(state, device=device),
                torch.zeros(batch, 3, channels, dtype=shape.dtype, device=device),
            )
            for full in shape.is_full
        ]

    @torch.no_grad()
    def prefill(self, prompts: Tensor, rows: int = 512) -> None:
        """Read prompts [batch, P] in slices of rows and write the first continuation token."""
        # prompts come in several lengths: not worth a compilation each
        prompt_reader = replace(self.target, wrap=identity)
        self.position.fill_(prompts.shape[1] - 1)
        self.tokens.zero_()
        self.tokens[:, : prompts.shape[1]] = prompts
        for begin in range(0, len(prompts), rows):
            part = slice(begin, begin + rows)
            x, _, _, cache = prompt_reader.trunk(prompts[part])
            for full, mine, theirs in zip(
                self.target.shape.is_full, self.caches, cache, strict=True
            ):
                for buffer, value in zip(mine, theirs, strict=True):
                    where = buffer[part, :, : prompts.shape[1]] if full else buffer[part]
                    where.copy_(value)
            self.tokens[part, prompts.shape[1]] = self.choose(x[:, -1], self.temperature[part])
        self.position += 1

    def choose(self, x: Tensor, temperature: Tensor) -> Tensor:
        """Next token [B] by arg-max of logits + temperature * Gumbel noise."""
        logits = self.target.logits(x)
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-20, 1 - 1e-7)))
        return (logits + temperature * noise).argmax(-1)

    def attention_step(self, x: Tensor, place: int) -> Tensor:
        """One full-attention layer for one token, over the whole buffer under a mask."""
        shape, weights = self.target.shape, self.target.layers[place]
        piece, (keys, values) = self.target.piece, self.caches[place]
        where = self.position[None]
        q, k, v, gate = piece(model.attention_before)(x, where, weights, shape)
        keys.index_copy_(2, where, k)
        values.index_copy_(2, where, v)
        seen = torch.arange(keys.shape[2], device=x.device) <= self.position
        grouped = q.reshape(q.shape[0], shape.kv_heads, -1, shape.head_dim)
        mixed = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=seen[None, None, None]
        )
        return piece(model.attention_after)(x, mixed.reshape(q.shape), gate, weights, shape)[0]

    @torch.no_grad()
    def step(self) -> None:
        """Read the token at position, write the next one behind it."""
        token = self.tokens.index_select(1, self.position[None])
        x = F.embedding(token, self.target.top["model.embed_tokens.weight"]).float()
        for place, full in enumerate(self.target.shape.is_full):
            if full:
                x = self.attention_step(x, place)
                continue
            state, tail = self.caches[place]
            weights, shape = self.target.layers[place], self.target.shape
            x, new_state, new_tail = self.target.piece(gdn_step)(x, state, tail, weights, shape)
            state.copy_(new_state)
            tail.copy_(new_tail)
        chosen = self.choose(x[:, 0], self.temperature)
        self.position += 1
        self.tokens.index_copy_(1, self.position[None], chosen[:, None])
