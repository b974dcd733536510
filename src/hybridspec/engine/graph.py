# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rounds as captured graphs: the same rounds, recorded once and enqueued with one call.

On a CPU everything in here is a plain call. On CUDA a run is made twice before it is cheap: the
first call compiles its kernels, the second records them.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.round import Rounds
from hybridspec.kernels.reference.accept import Ledger


@dataclass(slots=True)
class Captured:
    """A run without arguments, results or host decisions."""

    run: Callable[[], object]
    device: torch.device
    _graph: torch.cuda.CUDAGraph | None = None
    _is_compiled: bool = False

    def prepare(self) -> None:
        """Compile and record it now, on CUDA; runs it twice."""
        if self.device.type == "cuda":
            self()
            self()

    def __call__(self) -> None:
        """Enqueue it."""
        if self._graph is not None:
            self._graph.replay()
        elif self.device.type != "cuda" or not self._is_compiled:
            self.run()
            self._is_compiled = True
        else:
            self._graph = recorded(self.run)
            self._graph.replay()


def recorded(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`run` as a graph; it has run before, so that nothing is compiled now."""
    graph = torch.cuda.CUDAGraph()
    gc.collect()  # an older graph that is freed while this one is recorded would spoil it
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph):
            run()
    finally:
        if was_enabled:
            gc.enable()
    return graph


class Mailbox:
    """What rounds left in a ledger's ring, on the host; on CUDA copied behind each round."""

    def __init__(self, ledger: Ledger) -> None:
        """Nothing has been posted yet."""
        self._ring = ledger.ring
        self._pinned: Tensor | None = None
        if ledger.ring.device.type == "cuda":
            self._pinned = torch.empty_like(ledger.ring, device="cpu").pin_memory()
            self._events = [torch.cuda.Event() for _ in range(len(ledger.ring))]

    def post(self, number: int) -> None:
        """Round `number` is enqueued: have its slot copied once it is over. Waits for nothing."""
        if self._pinned is not None:
            slot = number % len(self._ring)
            self._pinned[slot].copy_(self._ring[slot], non_blocking=True)
            self._events[slot].record()

    def read(self, number: int) -> list[int]:
        """The slot of round `number`. Waits for that round, not for those behind it."""
        slot = number % len(self._ring)
        if self._pinned is None:
            return cast("list[int]", self._ring[slot].tolist())
        self._events[slot].synchronize()
        return cast("list[int]", self._pinned[slot].tolist())


@dataclass(slots=True)
class CapturedRounds(Rounds):
    """Rounds of one request, each kind a graph.

    One injection takes MAX_ROWS tap rows. So that no more wait, plain rounds inject before the next
    one would be too many.
    """

    _drafted: Callable[[], None] = field(init=False)
    _plain: Callable[[], None] = field(init=False)
    _inject: Callable[[], None] = field(init=False)
    _waiting: int = MAX_ROWS
    """tap rows that wait at most"""

    def __post_init__(self) -> None:
        """Nothing is recorded before it is first wanted."""
        device = self.request.ledger.ring.device
        self._drafted = Captured(lambda: Rounds.drafted_round(self), device)
        self._plain = Captured(lambda: Rounds.plain_round(self), device)
        self._inject = Captured(self._inject_taps, device)

    def drafted_round(self) -> None:
        """Enqueue a round that drafts; it begins with an injection."""
        self._drafted()
        self._waiting = MAX_ROWS

    def plain_round(self) -> None:
        """Enqueue a plain one."""
        if self.drafter is not None and self._waiting == MAX_ROWS:
            self._inject()
            self._waiting = 0
        self._plain()
        self._waiting += 1

    def reset(self) -> None:
        """Another text begins; what was recorded serves it as well."""
        Rounds.reset(self)
        self.forget_waiting()

    def forget_waiting(self) -> None:
        """The request was put back: as many tap rows may wait as at its start."""
        self._waiting = MAX_ROWS

    def _inject_taps(self) -> None:
        assert self.drafter is not None
        assert self.request.draft is not None
        self.drafter.inject(self.request.draft)
