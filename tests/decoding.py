# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Requests below the engine's door, and plain decoding as the judge of all others."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import FinishReason, Reading
from hybridspec.engine.graph import Mailbox
from hybridspec.engine.loop import Entry, Tally, decode, read_slot, start
from hybridspec.engine.round import Proposer, Rounds
from hybridspec.kernels.reference.norm import rms_norm
from hybridspec.models.dflash import Drafter, load_drafter
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.operations import of_mode
from hybridspec.models.state import TargetState
from hybridspec.models.target import Target
from hybridspec.models.target_layout import load_target
from hybridspec.policy.policy import Fixed, Policy
from tests.tiny import VOCAB, ScriptedDrafter, write_target

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


def write_twins(directory: Path, *, seed: int, spread: float) -> Path:
    """A random checkpoint in which token i + V/2 has the logit of token i, but for `spread`."""
    write_target(directory, seed=seed)
    tensors = load_file(directory / "model.safetensors")
    gen = torch.Generator().manual_seed(seed)
    rows = tensors["lm_head.weight"][: VOCAB // 2]
    apart = 1 + spread * torch.randn(len(rows), 1, generator=gen)
    tensors["lm_head.weight"] = torch.cat((rows, rows * apart))
    save_file(tensors, directory / "model.safetensors")
    return directory


def drafted(rounds: Rounds) -> Entry:
    """Take a drafted round, and read what it left in the ring."""
    rounds.drafted_round()
    ledger = rounds.request.ledger
    return read_slot(Mailbox(ledger), int(ledger.rounds) - 1, is_drafted=True)


def plain(rounds: Rounds) -> Entry:
    """The same of a plain round."""
    rounds.plain_round()
    ledger = rounds.request.ledger
    return read_slot(Mailbox(ledger), int(ledger.rounds) - 1, is_drafted=False)


class Walk:
    """Plain decoding of a prompt: ids, and the state after each step, to compare with alone."""

    def __init__(self, target: Target, prompt: bytes, steps: int) -> None:
        rounds = begin(target, prompt, budget=steps + 1)
        self.ids: list[int] = [int(rounds.request.ledger.anchor)]
        self.states: list[TargetState] = [snapshot(rounds.request.target)]
        for _ in range(steps):
            self.ids += plain(rounds).tokens
            self.states.append(snapshot(rounds.request.target))


def snapshot(state: TargetState) -> TargetState:
    """The state as it stands; committed keys and values never change, so they are shared."""
    moving = {name: getattr(state, name).clone() for name in ("length", "conv", "recurrent")}
    return replace(state, **moving)


def scripted(
    target: Target,
    prompt: bytes,
    ids: list[int],
    *,
    right: tuple[int, ...] | list[int] = (),
    rows: int = MAX_ROWS,
    block_size: int = MAX_ROWS,
    stop_ids: tuple[int, ...] = (),
    budget: int = 200,
) -> Rounds:
    """A request whose drafts are known: those of plain decoding, spoiled where a test wants it."""
    drafter = ScriptedDrafter(
        script=ids, prompt=len(prompt), right=list(right), block_size=block_size
    )
    return begin(
        target, prompt, drafter=drafter, policy=Fixed(rows), stop_ids=stop_ids, budget=budget
    )


def finished(rounds: Rounds, *, ahead: int = 0) -> tuple[list[int], FinishReason | None, Tally]:
    """All ids of a request, its reason, and its counts, which must add up."""
    tally = Tally()
    emissions = list(decode(rounds, tally, ahead=ahead))
    ids = [i for emission in emissions for i in emission.token_ids]
    assert all(emission.finish_reason is None for emission in emissions[:-1])
    assert tally.tokens == len(ids)
    assert tally.rows_read == sum(rows * count for rows, count in tally.lengths.items())
    assert tally.drafts_accepted == len(ids) - 1 - tally.rounds
    return ids, emissions[-1].finish_reason, tally


def plain_ids(target: Target, prompt: bytes, count: int) -> list[int]:
    """The first `count` tokens of plain decoding, the prompt's own first."""
    rounds = begin(target, prompt, budget=count)
    ids = [int(rounds.request.ledger.anchor)]
    while len(ids) < count:
        ids += plain(rounds).tokens
    return ids


def read_block(target: Target, tokens: list[int], rows: int, state: TargetState) -> Reading:
    """Read the first `rows` of a block of known tokens; nothing is committed."""
    count = torch.tensor(rows, dtype=torch.int32)
    return target.read_on(target.read_to_router(torch.tensor(tokens), count, state), count, state)


def commit(state: TargetState, rows: int) -> None:
    """Move a state as a round does whose first `rows` rows count."""
    state.commit(torch.tensor(rows, dtype=torch.int32))
    state.length.add_(rows)


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
