# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A scripted text: target and drafter run in full, and what they say is replaced by position.

The text is a fixed token at every absolute position, so every policy writes the same. What replaces
is read from tables at places that the device knows: a round may be captured as ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from hybridspec.bench.worlds import Acceptances
from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Block, Reading, Routed
from hybridspec.engine.round import Proposer, Reader
from hybridspec.models.state import TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A text, and what is drafted at each of its positions."""

    text: Tensor
    """[positions + MAX_ROWS] int64"""
    blocks: Tensor
    """[positions, 1 + drafts] int64: of the anchor at each position; the text up to the first draft
    that is not accepted, then other tokens"""
    log_odds: Tensor
    """[positions, drafts] float32"""

    @classmethod
    def written(
        cls,
        acceptances: Acceptances,
        *,
        vocab_size: int,
        device: torch.device,
        seed: int = 1,
        beginning: Sequence[int] = (),
    ) -> "Script":
        """A text, random after its beginning, with drafts that are as right as the tables say."""
        generator = torch.Generator().manual_seed(seed)
        positions, drafts = acceptances.accepted.shape
        text = torch.randint(vocab_size, (positions + MAX_ROWS,), generator=generator)
        text[: len(beginning)] = torch.tensor(beginning, dtype=torch.int64)
        right = text.unfold(0, 1 + drafts, 1)[:positions]
        others = torch.randint(1, vocab_size, (positions, drafts), generator=generator)
        others = (right[:, 1:] + others) % vocab_size
        is_right = acceptances.accepted.long().cumprod(1).bool()
        blocks = torch.cat((right[:, :1], torch.where(is_right, right[:, 1:], others)), dim=1)
        return cls(
            text=text.to(device),
            blocks=blocks.to(device),
            log_odds=acceptances.log_odds.to(device),
        )

    def written_from(self, position: int, tokens: int) -> list[int]:
        """The next tokens of the text. Waits for the device."""
        return cast("list[int]", self.text[position : position + tokens].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReader:
    """A target that says the script's text after whatever it reads."""

    target: Reader
    script: Script
    following: Tensor
    """[MAX_ROWS] int32: 1, 2, ..."""

    @classmethod
    def of(cls, target: Reader, script: Script) -> "ScriptedReader":
        """The target, where its script is."""
        rows = torch.arange(1, MAX_ROWS + 1, dtype=torch.int32, device=script.text.device)
        return cls(target=target, script=script, following=rows)

    @property
    def head(self) -> Tensor:
        """The target's."""
        return self.target.head

    @property
    def fetched(self) -> Tensor | None:
        """The target's."""
        return self.target.fetched

    def empty_state(self, positions: int) -> TargetState:
        """The target's."""
        return self.target.empty_state(positions)

    def read_prompt(self, tokens: Tensor, state: TargetState) -> Reading:
        """Read in full; the Reading has the token after the last row."""
        reading = self.target.read_prompt(tokens, state)
        return replace(reading, tokens=self.script.text.index_select(0, state.length.view(1)))

    def read_to_router(self, tokens: Tensor, rows: Tensor, state: TargetState) -> Routed:
        """The target's."""
        return self.target.read_to_router(tokens, rows, state)

    def read_on(self, routed: Routed, rows: Tensor, state: TargetState) -> Reading:
        """Read in full; row i stands at position length + i."""
        reading = self.target.read_on(routed, rows, state)
        tokens = self.script.text.index_select(0, self.following + state.length)
        return replace(reading, tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedDrafter:
    """A drafter that drafts in full, and proposes by script."""

    drafter: Proposer
    script: Script

    def empty_state(self, positions: int) -> Any:
        """The drafter's."""
        return self.drafter.empty_state(positions)

    def take(self, taps: Tensor, state: Any, rows: Tensor | None = None) -> None:
        """The drafter's."""
        self.drafter.take(taps, state, rows)

    def inject(self, state: Any) -> None:
        """The drafter's."""
        self.drafter.inject(state)

    def propose(self, anchor: Tensor, state: Any) -> Block:
        """The script's block of the anchor, which stands at position `injected`."""
        self.drafter.propose(anchor, state)
        place = torch.as_tensor(state.injected, device=anchor.device).view(1)
        return Block(
            tokens=self.script.blocks.index_select(0, place)[0],
            log_odds=self.script.log_odds.index_select(0, place)[0],
        )
