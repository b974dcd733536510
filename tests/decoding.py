# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Requests below the engine's door, and plain decoding as the judge of all others."""

from dataclasses import replace
from pathlib import Path

import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Reading
from hybridspec.engine.loop import start
from hybridspec.engine.round import Proposer, Rounds
from hybridspec.kernels.reference.norm import rms_norm
from hybridspec.models.dflash import Drafter, load_drafter
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.operations import of_mode
from hybridspec.models.state import TargetState
from hybridspec.models.target import Target
from hybridspec.models.target_layout import load_target
from hybridspec.policy.policy import Fixed, Policy

CPU = torch.device("cpu")
TAPS = (0, 2, 3)
ZURICH = b'{"city": "Zurich"} ' * 20 + b"again:"
"""a long repetition: nearly equal keys, which random text never has"""


def load(directory: Path, *, mode="exact", taps=TAPS) -> Target:
    return load_target(directory, operations=of_mode(mode), taps=taps, device=CPU)


def load_tapped(directory: Path, *, mode="exact") -> Target:
    """A target whose every layer is tapped."""
    target = load(directory, mode=mode, taps=())
    return replace(target, taps=tuple(range(len(target.layers))))


def load_draft(directory: Path, target: Target) -> Drafter:
    return load_drafter(
        directory,
        config=DraftConfig.load(directory),
        target=target.config,
        embedding=target.embedding,
        head=target.head,
    )


def begin(
    target: Target,
    prompt: bytes,
    *,
    drafter: Proposer | None = None,
    policy: Policy | None = None,
    stop_ids: tuple[int, ...] = (),
    budget: int = 200,
) -> Rounds:
    """A request whose prompt is read; the tiny tokenizer has one token a byte."""
    request = start(list(prompt), target=target, drafter=drafter, stop_ids=stop_ids, budget=budget)
    policy = policy or Fixed(MAX_ROWS)
    return Rounds(target=target, drafter=drafter, policy=policy, request=request)


def plain_ids(target: Target, prompt: bytes, count: int) -> list[int]:
    """The first `count` tokens of plain decoding, the prompt's own first."""
    rounds = begin(target, prompt, budget=count)
    ids = [int(rounds.request.anchor)]
    while len(ids) < count:
        ids += rounds.plain_round().tokens.tolist()
    return ids


def read_block(target: Target, tokens: list[int], rows: int, state: TargetState) -> Reading:
    """Read the first `rows` of a block of known tokens; nothing is committed."""
    count = torch.tensor(rows, dtype=torch.int32)
    return target.read_on(target.read_to_router(torch.tensor(tokens), count, state), count, state)


def commit(state: TargetState, rows: int) -> None:
    state.commit(torch.tensor(rows, dtype=torch.int32))


def prefilled(target: Target, text: list[int], *, split: int = 64, room: int = 64) -> TargetState:
    """The state after a fresh prefill of a text."""
    state = TargetState.empty(target.config, len(text) + room, CPU)
    for piece in torch.tensor(text).split(split):
        target.read_prompt(piece, state)
    return state


def differing(found: TargetState, want: TargetState) -> list[str]:
    """Names of the committed tensors that are not equal bit for bit."""
    ours, theirs = found.committed(), want.committed()
    assert ours.keys() == theirs.keys()
    return [name for name in ours if not torch.equal(ours[name], theirs[name])]


def logits_of(target: Target, reading: Reading) -> torch.Tensor:
    """Logits after each row, from the raw output of the last layer, which must be the last tap."""
    hidden = reading.taps[:, -target.config.hidden_size :]
    return rms_norm(hidden, target.norm, target.config.rms_norm_eps) @ target.head.T


def read_text(target: Target, tokens: torch.Tensor, *, split: int = 64) -> Reading:
    """Prefill a text; the reading has the taps of every row, and the last row's token."""
    state = TargetState.empty(target.config, len(tokens), CPU)
    readings = [target.read_prompt(piece, state) for piece in tokens.split(split)]
    return replace(readings[-1], taps=torch.cat([reading.taps for reading in readings]))
