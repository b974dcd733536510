# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rounds of a text that is over, for the next one: their states are there, their graphs recorded.

On a GPU two rounds of each kind go by before its graph replays, a tenth of a second or more; a
request of some dozen tokens would hardly take anything else.
"""

import gc
from dataclasses import dataclass, field

from hybridspec.engine.round import Rounds

ROOM = 1024
"""positions come in multiples of so many: the next prompt may be a little longer"""


@dataclass(slots=True)
class Kept:
    """At most one set of rounds, while no text is in them."""

    _held: list[Rounds] = field(default_factory=list[Rounds], init=False)

    def take(self, positions: int) -> Rounds | None:
        """The rounds, if so many positions fit; whoever has taken them has them alone."""
        rounds = self._out()
        if rounds is not None and rounds.request.positions < positions:
            self.put(rounds)
            return None
        return rounds

    def put(self, rounds: Rounds) -> None:
        """Back again; of two the roomier are kept."""
        other = self._out()
        if other is not None and other.request.positions > rounds.request.positions:
            rounds = other
        self._held[:] = [rounds]

    def _out(self) -> Rounds | None:
        try:
            return self._held.pop()  # in one step: threads may ask at once
        except IndexError:
            return None

    def drop(self) -> None:
        """Free their memory."""
        if self._held:
            self._held.clear()
            gc.collect()  # captured rounds hold themselves


def room_for(positions: int, most: int) -> int:
    """Positions to make room for, of `most` that the model has; at least those that are asked."""
    return max(positions, min(-(-positions // ROOM) * ROOM, most))
