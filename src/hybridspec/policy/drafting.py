# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Draft or not, decided before drafting: a drafted round costs its time whatever comes of it.

While drafted rounds save time, all rounds draft. When the last MEMORY of them lost time against
plain steps, drafting rests; now and then a round drafts as a probe, as often as PROBE_SHARE of the
plain steps' time pays for. A probe that saves time starts a trial: from TRIAL rounds on, drafting
rests again as soon as the last MEMORY of them together lost time, and all that they lost is paid
off before the next probe. So on text that no draft fits, and with a drafter that fits no text, the
loss stays near PROBE_SHARE.
"""

from collections import deque
from dataclasses import dataclass, field

MEMORY = 32
"""drafted rounds that are looked back on"""
TRIAL = 4
"""drafted rounds after which a trial is judged"""
PROBE_SHARE = 0.0025
"""share of the time that probes may lose by the latency table, half of the 0.5 % that is allowed: a
probe also injects the rows that wait and finds the drafter's weights out of the cache (drafted
rounds of a rest took 1.5 times the table's on one thread of a Xeon, November 2026)"""


@dataclass(slots=True)
class Drafting:
    """Whether the next round drafts. It outlives a request: the next text is often of its kind."""

    is_on: bool = True
    """drafted rounds pay, as far as is known"""
    _saved: deque[float] = field(default_factory=lambda: deque[float](maxlen=MEMORY))
    """seconds that drafted rounds saved against plain steps, less than 0 where they lost"""
    _patience: int = MEMORY
    """rounds to look at before drafting may rest"""
    _debt: float = 0.0
    """seconds lost to probes that plain steps have not paid off"""

    def wants_drafts(self) -> bool:
        """The next round drafts: because it pays, or as a probe that is paid for."""
        return self.is_on or self._debt <= 0

    def see_drafted(self, *, tokens: int, seconds: float, plain_seconds: float) -> None:
        """A drafted round emitted tokens in seconds; a plain step takes plain_seconds."""
        saved = tokens * plain_seconds - seconds
        if self.is_on:
            self._saved.append(saved)
            if len(self._saved) == MEMORY:  # a trial that came so far is none any more
                self._patience = MEMORY
            if len(self._saved) >= self._patience and sum(self._saved) < 0:
                self._rest()
        elif saved > 0:
            self._try(saved)
        else:
            self._debt -= saved

    def see_plain(self, seconds: float) -> None:
        """A plain step was taken where a draft could have been."""
        self._debt -= PROBE_SHARE * seconds

    def _rest(self) -> None:
        lost = -sum(self._saved)
        is_trial = self._patience == TRIAL
        # what the first rounds lost was the price of knowing; a lost trial is paid back in full
        self._debt = lost if is_trial else lost / len(self._saved)
        self.is_on = False

    def _try(self, saved: float) -> None:
        self.is_on, self._patience, self._debt = True, TRIAL, 0.0
        self._saved.clear()
        self._saved.append(saved)
