# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The drafter's formulas written down a second time, in float64 and without a cache."""

import json
import math

import torch
from safetensors.torch import load_file

from hybridspec.core.records import Block


class Judge:
    """DFlash from its definition: context features once, dense masks over the whole sequence.

    Reads layer kinds, window, causality and rotary embedding from the file, not from our config.
    """

    def __init__(self, directory, drafter):
        self.config = drafter.config
        self.file = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.file |= self.file.get("transformer_layer_config", {})
        self.file |= self.file.get("dflash_config", {})
        self.weights = {
            name: x.double() for name, x in load_file(directory / "model.safetensors").items()
        }
        self.embedding, self.head = drafter.embedding.double(), drafter.head.double()

    def context(self, taps):
        """Keys and values of every layer, [layers, positions, HKV, D] each."""
        features = self.norm(taps.double() @ self.weights["fc.weight"].T, "hidden_norm")
        positions = torch.arange(len(taps))
        pairs = [
            self.keys_and_values(number, features, positions)
            for number in range(self.config.num_hidden_layers)
        ]
        return tuple(torch.stack(part) for part in zip(*pairs, strict=True))

    def logits(self, taps, anchor):
        """Of the rows after the anchor, the mask's own left in."""
        config, start = self.config, len(taps)
        block = [anchor] + [config.mask_token_id] * (config.block_size - 1)
        positions = torch.arange(start, start + len(block))
        keys, values = self.context(taps)
        x = self.embedding[block]
        for number in range(config.num_hidden_layers):
            name = f"layers.{number}"
            normed = self.norm(x, f"{name}.input_layernorm")
            q = self.heads(normed, f"{name}.self_attn.q_proj", config.num_attention_heads)
            q = self.turn(self.norm(q, f"{name}.self_attn.q_norm"), positions)
            k, v = self.keys_and_values(number, normed, positions)
            k, v = torch.cat((keys[number], k)), torch.cat((values[number], v))
            groups = config.num_attention_heads // config.num_key_value_heads
            k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) / config.head_dim**0.5
            scores[:, ~self.mask(number, start, len(block))] = -torch.inf
            seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
            x = x + seen @ self.weights[f"{name}.self_attn.o_proj.weight"].T
            normed = self.norm(x, f"{name}.post_attention_layernorm")
            gate, up = (
                normed @ self.weights[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up")
            )
            hidden = gate / (1 + torch.exp(-gate)) * up
            x = x + hidden @ self.weights[f"{name}.mlp.down_proj.weight"].T
        return self.norm(x, "norm")[1:] @ self.head.T

    def keys_and_values(self, number, x, positions):
        name, HKV = f"layers.{number}.self_attn", self.config.num_key_value_heads
        k = self.norm(self.heads(x, f"{name}.k_proj", HKV), f"{name}.k_norm")
        return self.turn(k, positions), self.heads(x, f"{name}.v_proj", HKV)

    def heads(self, x, name, count):
        return (x @ self.weights[f"{name}.weight"].T).view(len(x), count, self.config.head_dim)

    def norm(self, x, name):
        mean = x.square().mean(-1, keepdim=True)
        return x / (mean + self.config.rms_norm_eps).sqrt() * self.weights[f"{name}.weight"]

    def mask(self, number, start, rows):
        """[rows, start + rows] of what a row sees."""
        types = self.file.get("layer_types") or ["full_attention"] * (number + 1)
        slides = types[number] == "sliding_attention"
        is_causal = self.file.get("is_causal")
        if self.file.get("sliding_window_non_causal"):
            is_causal = False
        if is_causal is None:
            is_causal = slides
        window = self.file["sliding_window"] if slides else start + rows

        def sees(q, k):
            return (k <= q or not is_causal) and -window < q - k < window

        ends = range(start, start + rows)
        return torch.tensor([[sees(q, k) for k in range(start + rows)] for q in ends])

    def frequencies(self):
        """Angle a position, by dimension, and the factor on cosine and sine."""
        rope = self.file.get("rope_scaling") or self.file.get("rope_parameters") or {}
        theta = rope.get("rope_theta", self.file.get("rope_theta"))
        half = self.config.head_dim // 2
        plain = [theta ** (-j / half) for j in range(half)]
        if rope.get("rope_type", "default") == "default":
            return plain, 1.0
        factor, trained = rope["factor"], rope["original_max_position_embeddings"]

        def dimension(turns):
            """The one, as a real number, that turns so often over the trained positions."""
            return half * math.log(trained / (2 * math.pi * turns), theta)

        low = max(math.floor(dimension(rope["beta_fast"])), 0)
        high = min(math.ceil(dimension(rope["beta_slow"])), 2 * half - 1)
        slowed = [min(max((j - low) / (high - low), 0), 1) for j in range(half)]
        pairs = zip(plain, slowed, strict=True)
        return [f * (1 - part) + f / factor * part for f, part in pairs], (
            0.1 * math.log(factor) + 1
        )

    def turn(self, x, positions):
        frequency, scale = self.frequencies()
        half = len(frequency)
        angle = (positions[:, None] * torch.tensor(frequency, dtype=torch.float64))[:, None]
        left, right = x[..., :half], x[..., half:]
        cos, sin = angle.cos() * scale, angle.sin() * scale
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def check_block(block: Block, logits: torch.Tensor, mask_token: int) -> None:
    """Drafts and log-odds are those of the judge's logits, the mask left out."""
    logits = logits.clone()
    logits[:, mask_token] = -torch.inf
    assert torch.equal(block.tokens[1:], logits.argmax(-1))
    p = logits.softmax(-1).amax(-1)
    assert torch.allclose(block.log_odds.double(), (p / (1 - p)).log(), atol=1e-4)
