# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The embedded pair below the engine's door: plain operations on a CPU, launches on a GPU.

Rounds are those of a GPU on both. On a CPU nothing is recorded and every call is a plain one.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Reading
from hybridspec.engine.graph import CapturedRounds
from hybridspec.engine.loading import Pair, load_pair
from hybridspec.engine.loop import start
from hybridspec.engine.round import Request
from hybridspec.models.embedded import TARGET, heldout_prompts
from hybridspec.models.state import TargetState
from hybridspec.models.target import Target
from hybridspec.policy.policy import Fixed, Policy
from tests.decoding import load_tapped

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def shipped(device: str) -> Pair:
    """In exact mode."""
    return load_pair(None, None, needs_drafter=True, mode="exact", device=torch.device(device))


def tapped(device: str) -> Any:
    """The target alone, every layer tapped: Target, or FusedTarget on a GPU."""
    target = load_tapped(TARGET)
    if device == "cpu":
        return target
    from hybridspec.models.fused import FusedTarget

    to = torch.device(device)
    return FusedTarget.of(target, mode="exact", dtype=torch.bfloat16, device=to)


def prompt_of(pair: Pair, number: int, tokens: int | None = None) -> list[int]:
    """The beginning of a held-out prompt."""
    return pair.tokenizer.encode(heldout_prompts("test")[number])[:tokens]


def begun(pair: Pair, prompt: list[int], policy: Policy, *, budget: int) -> CapturedRounds:
    """Rounds of a request that has read its prompt."""
    request = started(pair, prompt, budget=budget)
    return CapturedRounds(target=pair.target, drafter=pair.drafter, policy=policy, request=request)


def started(pair: Pair, prompt: list[int], *, budget: int) -> Request:
    """The request alone; nothing but the budget ends it."""
    return start(prompt, target=pair.target, drafter=pair.drafter, stop_ids=(-1,), budget=budget)


def begun_plain(pair: Pair, prompt: list[int], *, budget: int) -> CapturedRounds:
    """The same without a drafter and without taps."""
    bare = replace(pair, target=replace(pair.target, taps=()), drafter=None)
    policy = Fixed(1, device=pair.target.head.device)
    return begun(bare, prompt, policy, budget=budget)


@dataclass(frozen=True)
class Diced(Fixed):
    """Another length each round, written where the recorded round reads it.

    The first two are the smallest and the largest.
    """

    drafts: float = 1.0
    """share of rounds that draft; stretches of plain ones are then longer than an injection"""
    seed: int = 0
    _plan: Iterator[tuple[bool, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Fixed.__post_init__(self)
        object.__setattr__(self, "_plan", self._planned())

    def _planned(self) -> Iterator[tuple[bool, int]]:
        dice = random.Random(self.seed)
        yield True, 1
        yield True, self.rows
        while True:
            if dice.random() >= self.drafts:
                yield from [(False, 1)] * dice.choice((1, 2, MAX_ROWS + 3))
            yield True, dice.randint(1, self.rows)

    def wants_drafts(self, context: int, left: int) -> bool:
        """Asked by the host before every round."""
        is_drafted, rows = next(self._plan)
        self._count.fill_(rows)
        return is_drafted


def leaves(record: Any) -> Iterator[tuple[Any, str, Any]]:
    """Every value in a record and the records in it: owner, name, value."""
    for part in fields(record):
        value = getattr(record, part.name)
        if is_dataclass(value):
            yield from leaves(value)
        else:
            yield record, part.name, value


def put_back(record: object, kept: object) -> None:
    """Every value as a copy of the record has it; tensors in place, so that graphs still fit."""
    for (owner, name, ours), (_, _, theirs) in zip(leaves(record), leaves(kept), strict=True):
        if isinstance(ours, Tensor):
            ours.copy_(theirs)
        elif ours != theirs:
            setattr(owner, name, theirs)


def unequal(record: object, other: object) -> list[str]:
    """Names of the values that are not the same bit for bit, but for the time of day."""
    return [
        name
        for (_, name, ours), (_, _, theirs) in zip(leaves(record), leaves(other), strict=True)
        if name != "settled"
        and not (torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs)
    ]


def count(rows: int, device: torch.device | str) -> Tensor:
    """[] int32."""
    return torch.tensor(rows, dtype=torch.int32, device=device)


def read(target: Target | Any, block: Tensor, rows: Tensor, state: TargetState) -> Reading:
    """One pass over the first `rows` of a block; nothing is committed."""
    return target.read_on(target.read_to_router(block, rows, state), rows, state)


def move(state: TargetState, rows: int) -> None:
    """Commit and count."""
    counted = count(rows, state.length.device)
    state.commit(counted)
    state.length.add_(counted)


def kept(reading: Reading, state: TargetState, rows: int) -> dict[str, Tensor]:
    """Copies of what a pass left behind for its first rows: by row first, then as it lies."""
    found = {name: getattr(reading, name)[:rows] for name in ("tokens", "gaps", "taps")}
    for part in fields(state.records):
        found[part.name] = getattr(state.records, part.name)[:, :rows].transpose(0, 1)
    return {name: tensor.clone() for name, tensor in found.items()}
