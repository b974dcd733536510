# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Where a round's time goes: the rounds of engine/round.py in pieces, each captured and timed.

A piece is a graph of its own, so launches of two pieces do not overlap as in a whole round, and the
rest holds the pauses between them. Speeds are measured on whole rounds, elsewhere.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hybridspec.core.records import Reading
from hybridspec.engine.graph import Captured, CapturedRounds
from hybridspec.engine.round import Rounds
from hybridspec.policy.policy import Hybrid, Policy

PHASES = ("draft", "verify", "commit", "policy", "rest")
OF_TARGET = {"read_to_router": "verify", "read_on": "verify"}
OF_DRAFTER = {"propose": "draft"}


@dataclass(slots=True)
class Piece:
    """A call whose result is kept; on CUDA recorded at the second, with the arguments of then."""

    device: torch.device
    call: Callable[[], Any] | None = None
    result: Any = None
    _captured: Captured = field(init=False)

    def __post_init__(self) -> None:
        self._captured = Captured(self._run, self.device)

    def __call__(self, call: Callable[[], Any]) -> Any:
        """Enqueue it; its result is a recording's own tensors from the second call on."""
        self.call = call
        self._captured()
        return self.result

    def _run(self) -> None:
        assert self.call is not None
        self.result = self.call()


@dataclass(slots=True)
class Watch:
    """Times the pieces of rounds."""

    device: torch.device
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    """by phase"""
    _pieces: dict[str, Piece] = field(default_factory=dict[str, Piece])
    _marks: list[tuple[str, Any, Any]] = field(default_factory=list[tuple[str, Any, Any]])
    _kind: str = ""

    def round(self, kind: str, run: Callable[[], None]) -> None:
        """A round of a kind, made of pieces. Waits for its end."""
        self._kind = kind
        self._marks.clear()
        run()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        whole = self._between(self._marks[0][1], self._marks[-1][2])
        known = 0.0
        for phase, begun, ended in self._marks:
            if phase != "rest":
                self.seconds[phase] += self._between(begun, ended)
                known += self._between(begun, ended)
        self.seconds["rest"] += whole - known

    def piece(self, phase: str, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """A piece of the round that is under way."""
        piece = self._pieces.setdefault(f"{self._kind} {name}", Piece(self.device))
        begun = self._mark()
        result = piece(partial(call, *arguments))
        self._marks.append((phase, begun, self._mark()))
        return result

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begun: Any, ended: Any) -> float:
        if self.device.type != "cuda":
            return ended - begun
        return begun.elapsed_time(ended) / 1e3


class Watched:
    """An object some of whose methods are pieces."""

    def __init__(self, inner: Any, watch: Watch, phases: dict[str, str]) -> None:
        self._inner, self._watch, self._phases = inner, watch, phases

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._phases:
            return found
        return partial(self._watch.piece, self._phases[name], name, found)


@dataclass(slots=True, kw_only=True)
class PhasedRounds(CapturedRounds):
    """The same rounds in pieces."""

    watch: Watch

    @classmethod
    def of(cls, rounds: Rounds) -> "PhasedRounds":
        """Rounds of the same request."""
        watch = Watch(rounds.request.ledger.ring.device)
        drafter: Any = rounds.drafter
        target: Any = Watched(rounds.target, watch, OF_TARGET)
        policy: Any = Watched(rounds.policy, watch, _launching(rounds.policy))
        if drafter is not None:
            drafter = Watched(drafter, watch, OF_DRAFTER)
        request = rounds.request
        return cls(target=target, drafter=drafter, policy=policy, request=request, watch=watch)

    def __post_init__(self) -> None:
        """Rounds are not captured whole."""
        watch = self.watch
        self._drafted = lambda: watch.round("drafted", partial(Rounds.drafted_round, self))
        self._plain = lambda: watch.round("plain", partial(Rounds.plain_round, self))
        inject = partial(watch.piece, "draft", "inject", self._inject_taps)
        self._inject = lambda: watch.round("inject", inject)

    def _settle(self, block: Tensor, reading: Reading, rows: Tensor) -> None:
        self.watch.piece("rest", "settle", Rounds._settle, self, block, reading, rows)

    def _commit(self, reading: Reading) -> None:
        self.watch.piece("commit", "commit", Rounds._commit, self, reading)


def _launching(policy: Policy) -> dict[str, str]:
    """Methods that launch anything: others would make empty graphs."""
    if not isinstance(policy, Hybrid):
        return {}
    names = ["choose", "learn"] if policy.correction is None else ["choose", "correct", "learn"]
    return dict.fromkeys(names, "policy")
