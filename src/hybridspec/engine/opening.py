# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Opening a text: rounds with room for it, its prompt read, the policy that decides for it."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from weakref import WeakSet

import torch

from hybridspec.core.options import EngineOptions
from hybridspec.engine.experience import Experience
from hybridspec.engine.graph import CapturedRounds
from hybridspec.engine.kept import Kept, room_for
from hybridspec.engine.loading import Pair
from hybridspec.engine.loop import read_prompt
from hybridspec.engine.memory import free_bytes
from hybridspec.engine.round import Request, Rounds
from hybridspec.policy.policy import Fixed, Hybrid


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Opening:
    """Opens texts of one pair under one set of options."""

    options: EngineOptions
    pair: Pair
    experience: Experience | None
    """None under policies that learn nothing"""
    siblings: WeakSet["Opening"]
    """all that open texts of the same weights, this one included"""
    _kept: Kept = field(default_factory=Kept, init=False)

    def __post_init__(self) -> None:
        self.siblings.add(self)

    @contextmanager
    def text(self, prompt_ids: list[int], max_new_tokens: int) -> Generator[Rounds]:
        """Rounds that have read the prompt; however the text ends, they are kept for the next.

        Raises OptionError where memory is short.
        """
        positions = self.pair.target.config.max_position_embeddings
        # the last emitted token is never read, so it may stand one past the positions
        budget = min(max_new_tokens, positions - len(prompt_ids) + 1)
        rounds = self._rounds_for(len(prompt_ids) + budget)
        try:
            self._begin(rounds, prompt_ids, budget)
            yield rounds
        finally:
            self._kept.put(rounds)

    @torch.inference_mode()  # whatever mode made the tensors, they may be written in this one
    def _begin(self, rounds: Rounds, prompt_ids: list[int], budget: int) -> None:
        rounds.reset()
        target, drafter = rounds.target, rounds.drafter
        read_prompt(rounds.request, prompt_ids, target=target, drafter=drafter, budget=budget)
        if self.experience is not None and not isinstance(rounds.policy, Hybrid):
            rounds.policy = self.experience.policy(rounds, prompt_ids)
            rounds.policy.reset()

    def _rounds_for(self, positions: int) -> Rounds:
        """Those of a text that is over, if they have the room; else new ones."""
        kept = self._kept.take(positions)
        if kept is not None:
            return kept
        self._check_room(positions)
        pair, device, is_plain = self.pair, self.pair.target.head.device, self._is_plain
        target = replace(pair.target, taps=()) if is_plain else pair.target
        drafter = None if is_plain else pair.drafter
        request = Request.empty(
            target,
            drafter,
            stop_ids=pair.tokenizer.stop_ids,
            positions=room_for(positions, pair.memory.positions),
        )
        rows = 1 if is_plain else self.options.length or pair.block_size
        kind = CapturedRounds if device.type == "cuda" else Rounds
        fixed = Fixed(rows, device=device)
        return kind(target=target, drafter=drafter, policy=fixed, request=request)

    def _check_room(self, positions: int) -> None:
        """Raise OptionError where the states of a text do not fit into what is free.

        What is kept of other texts is freed for it.
        """
        memory, device = self.pair.memory, self.pair.target.head.device
        if self._is_plain:
            memory = replace(memory, drafter=None)
        self._kept.drop()
        free = free_bytes(device)
        if free is not None and memory.needed(positions, is_loaded=True) > free:
            for sibling in self.siblings:
                sibling._kept.drop()
            free = free_bytes(device)
        memory.check(positions, free, is_loaded=True)

    @property
    def _is_plain(self) -> bool:
        return self.options.policy == "plain"
