# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Worlds of acceptance: how often draft j is right, given that those before it were.

Random weights guess nothing, so acceptance is drawn from what was published, once for every anchor
position: all policies meet the same world, and a rerun repeats itself. Chat and agentic are the
first drafter of Qwen3.6-35B-A3B by position, UltraChat and a production set, positions 1..8
(github.com/vllm-project/speculators/issues/761); later positions keep the eighth's share. Maths is
derived: 0.88 at position 1 (DFlash on Qwen3-4B, maths, DSpark paper, figure 2), and the one share
at all others that gives the 6.95 tokens a round of 16 rows that SGLang publishes for GSM8K. Mixed
is chat and agentic by turns.

What this leaves out: rounds are independent, where real text has hard and easy stretches.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hybridspec.bench.options import World

CHAT = (0.712, 0.678, 0.704, 0.746, 0.775, 0.783, 0.790, 0.789)
AGENTIC = (0.854, 0.902, 0.926, 0.943, 0.955, 0.957, 0.965, 0.969)
MATHS = (0.88, 0.8706)
TURNS: "dict[World, tuple[tuple[float, ...], ...]]" = {
    "chat": (CHAT,),
    "agentic": (AGENTIC,),
    "maths": (MATHS,),
    "mixed": (CHAT, AGENTIC),
}
"""profiles of a world, which take turns"""
STRETCH = 64
"""anchor positions until the next profile's turn"""
AUC = 0.85
"""how well log-odds tell right drafts from wrong ones: chance that a right one's are higher
(0.847 is published for an online logistic on draft logits, 0.865 for a trained selector)"""
LARGEST = 40.0
"""log-odds are clamped to this, as a drafter's are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptances:
    """What a drafter's guesses are worth after an anchor at each position."""

    accepted: Tensor
    """[positions, drafts] bool: draft j is right if those before it are"""
    log_odds: Tensor
    """[positions, drafts] float32"""


def profile(world: "World", positions: int, drafts: int) -> Tensor:
    """Chance that draft j is right given the ones before it: [positions, drafts] float64."""
    turns = [[shares[min(j, len(shares) - 1)] for j in range(drafts)] for shares in TURNS[world]]
    turn = torch.arange(positions) // STRETCH % len(turns)
    return torch.tensor(turns, dtype=torch.float64)[turn]


def draw_acceptances(world: "World", *, positions: int, drafts: int, seed: int = 0) -> Acceptances:
    """Right or wrong by the profile; log-odds from one normal for right and one for wrong drafts.

    Both have the variance v and lie v apart around the profile's own log-odds. So log-odds f mean
    P(right) = sigmoid(f): slope 1 and intercepts 0 are a fitted table. And AUC = Phi(sqrt(v / 2)).
    """
    generator = torch.Generator().manual_seed(seed)
    chances = profile(world, positions, drafts)
    accepted = torch.rand(chances.shape, generator=generator, dtype=torch.float64) < chances
    deviation = math.sqrt(2) * NormalDist().inv_cdf(AUC)
    noise = torch.randn(chances.shape, generator=generator, dtype=torch.float64)
    shift = torch.where(accepted, 0.5, -0.5) * deviation**2
    log_odds = (chances.logit() + shift + deviation * noise).clamp(-LARGEST, LARGEST)
    return Acceptances(accepted=accepted, log_odds=log_odds.float())
