# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Worlds of acceptance: how often draft j is right, given that those before it were.

Random weights guess nothing, so acceptance is drawn from what was published, once for every anchor
position: all policies meet the same world, and a rerun repeats itself. Each world is a file of
`acceptance_worlds/`, which also says where its numbers are from.

What this leaves out: rounds of a stretch are independent, where real text is hard or easy for
longer.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hybridspec.bench.options import World

WORLDS = Path(__file__).parent / "acceptance_worlds"
LARGEST = 40.0
"""log-odds are clamped to this, as a drafter's are"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceWorld:
    """Shares of right drafts, and how well log-odds tell them apart."""

    turns: list[list[float]]
    """profiles that take turns: chance that draft 1, 2, ... is right given the ones before it; the
    last of them holds for all later drafts"""
    stretch: int
    """anchor positions until the next profile's turn"""
    auc: float
    """chance that a right draft's log-odds are higher than a wrong one's (0.847 is published for an
    online logistic on draft logits, 0.865 for a trained selector)"""
    source: str
    derivation: str

    @classmethod
    def of(cls, world: "World") -> "AcceptanceWorld":
        """The world of this name."""
        return cls(**json.loads((WORLDS / f"{world}.json").read_text("utf-8")))

    def profile(self, positions: int, drafts: int) -> Tensor:
        """Chance that draft j is right given the ones before it: [positions, drafts] float64."""
        turns = [[shares[min(j, len(shares) - 1)] for j in range(drafts)] for shares in self.turns]
        turn = torch.arange(positions) // self.stretch % len(turns)
        return torch.tensor(turns, dtype=torch.float64)[turn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptances:
    """What a drafter's guesses are worth after an anchor at each position."""

    accepted: Tensor
    """[positions, drafts] bool: draft j is right if those before it are"""
    log_odds: Tensor
    """[positions, drafts] float32"""

    def tokens_a_round(self, rows: int, *, begin: int, tokens: int) -> float:
        """What rounds of so many rows emit from position `begin` on, until `tokens` are written."""
        accepted = self.accepted.long().cumprod(1).sum(1).clamp(max=rows - 1)
        right = cast("list[int]", accepted.tolist())
        place, rounds = begin, 0
        while place < begin + tokens:
            place, rounds = place + 1 + right[place], rounds + 1
        return (place - begin) / rounds


def draw_acceptances(world: "World", *, positions: int, drafts: int, seed: int = 0) -> Acceptances:
    """Right or wrong by the profile; log-odds from one normal for right and one for wrong drafts.

    Both have the variance v and lie v apart around the profile's own log-odds. So log-odds f mean
    P(right) = sigmoid(f): slope 1 and intercepts 0 are a fitted table. And AUC = Phi(sqrt(v / 2)).
    """
    generator, own = torch.Generator().manual_seed(seed), AcceptanceWorld.of(world)
    chances = own.profile(positions, drafts)
    accepted = torch.rand(chances.shape, generator=generator, dtype=torch.float64) < chances
    deviation = math.sqrt(2) * NormalDist().inv_cdf(own.auc)
    noise = torch.randn(chances.shape, generator=generator, dtype=torch.float64)
    shift = torch.where(accepted, 0.5, -0.5) * deviation**2
    log_odds = (chances.logit() + shift + deviation * noise).clamp(-LARGEST, LARGEST)
    return Acceptances(accepted=accepted, log_odds=log_odds.float())
