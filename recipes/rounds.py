# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Decoding rounds simulated over known greedy continuations: what would have been accepted.

Drafts of every anchor are computed at once; then rounds jump from anchor to anchor as decoding
would. Rounds whose block reaches beyond the continuation's end are left out, since their acceptance
is not known in full.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from drafter_model import DrafterShape, Weights, draft_hidden, draft_logits
from safetensors.torch import load_file
from target_forward import Target
from torch import Tensor

CLAMP = 40.0
"""Log-odds are held in +-CLAMP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rounds and what the drafter said in them."""

    accepted: Tensor
    """[rounds] int64, 0..G."""
    greedy_agreement: float
    """Share of continuation tokens that this forward pass would choose too (1 up to rounding)."""
    observations: dict[str, Tensor]
    """log_odds [n] fp32, position [n] int64 1..G, accepted [n] uint8: one row a draft reached."""


def log_odds(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Best token and its log-odds against all others; logits [.., V], the mask's at -inf."""
    best, token = logits.max(-1)
    others = logits.scatter(-1, token[..., None], float("-inf")).logsumexp(-1)
    return token, (best - others).clamp(-CLAMP, CLAMP)


@torch.no_grad()
def drafts_of(
    taps: Tensor,
    tokens: Tensor,
    anchors: Tensor,
    target: Target,
    weights: Weights,
    shape: DrafterShape,
) -> tuple[Tensor, Tensor]:
    """Draft tokens and their log-odds [B, A, G]."""
    embed, head = target.top["model.embed_tokens.weight"], target.top["lm_head.weight"]
    hidden = draft_hidden(taps, tokens, anchors, embed, weights, shape)
    return log_odds(draft_logits(hidden, head, shape))


def walk(accepted: list[int], begin: int, last: int) -> list[int]:
    """Anchors that decoding visits, from begin to last; accepted[i] belongs to anchor begin + i."""
    visited, anchor = [], begin
    while anchor <= last:
        visited.append(anchor)
        anchor += accepted[anchor - begin] + 1
    return visited


@torch.no_grad()
def measure(
    target: Target, weights: Weights, shape: DrafterShape, file: Path, count: int, rows: int = 8
) -> Measured:
    """Simulate rounds over the first count continuations of a file of continuations.py."""
    data = load_file(file)
    device = target.top["lm_head.weight"].device
    drafts = shape.block_size - 1
    counts, same, total = [], 0, 0
    seen: dict[str, list[Tensor]] = {"log_odds": [], "position": [], "accepted": []}
    for first in range(0, min(count, len(data["ends"])), rows):
        part = slice(first, first + rows)
        begins, ends = data["begins"][part], data["ends"][part]
        if int(ends.max()) - drafts <= int(begins.min()):
            continue  # too short for a single whole block
        tokens = data["tokens"][part, : int(ends.max())].to(device).long()
        x, _, tapped, _ = target.trunk(tokens, shape.taps)
        taps = torch.cat([t.to(shape.dtype) for t in tapped], -1)
        begin, length = int(begins.min()), tokens.shape[1]
        anchors = torch.arange(begin, length - drafts, device=device).expand(len(tokens), -1)
        drafted, odds = drafts_of(taps, tokens, anchors, target, weights, shape)
        places = anchors[..., None] + torch.arange(1, drafts + 1, device=device)
        right = drafted == tokens.gather(1, places.flatten(1)).view_as(places)
        reached = right.long().cumprod(-1)
        chosen = target.logits(x[:, begin - 1 : -1]).argmax(-1) == tokens[:, begin:]
        for row in range(len(tokens)):
            end, own = int(ends[row]), int(begins[row])
            same += int(chosen[row, own - begin : end - begin].sum())
            total += end - own
            lengths = reached[row].sum(-1).tolist()[own - begin :]
            visited = walk(lengths, own, end - 1 - drafts)
            counts += [lengths[a - own] for a in visited]
            for name, values in observed(visited, begin, reached[row], odds[row]).items():
                seen[name].append(values)
    return Measured(
        accepted=torch.tensor(counts),
        greedy_agreement=same / max(total, 1),
        observations={name: torch.cat(values) for name, values in seen.items()},
    )


def observed(visited: list[int], begin: int, reached: Tensor, odds: Tensor) -> dict[str, Tensor]:
    """Draft j of an anchor has a label iff draft j - 1 was accepted; reached, odds [anchors, G]."""
    places = torch.tensor(visited, dtype=torch.long, device=odds.device) - begin
    mine = reached[places].bool()
    known = torch.cat([torch.ones_like(mine[:, :1]), mine[:, :-1]], 1)
    position = torch.arange(1, odds.shape[1] + 1, device=odds.device).expand_as(mine)
    return {
        "log_odds": odds[places][known],
        "position": position[known],
        "accepted": mine[known].to(torch.uint8),
    }


def summary_of(result: Measured) -> dict[str, object]:
    """The numbers of a Measured for a report."""
    accepted = result.accepted.double()
    size = int(result.observations["position"].max()) if len(accepted) else 0
    return {
        "rounds": len(accepted),
        "tokens_a_round": round(float(accepted.mean() + 1), 4),
        "share_of_rounds_reaching": [
            round(float((accepted >= j).double().mean()), 4) for j in range(1, size + 1)
        ],
        "greedy_agreement": round(result.greedy_agreement, 5),
    }
