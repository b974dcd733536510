# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Draft or not, decided before drafting: a drafted round costs its time whatever comes of it.

While drafted rounds save time, all rounds draft. When the last MEMORY of them lost time against
plain steps, drafting rests; now and then a round drafts as a probe. A probe that saves time starts
a trial: from TRIAL rounds on, drafting rests again as soon as the last MEMORY of them together lost
time. What probes and lost trials cost is paid from two purses. The first fills with PROBE_SHARE of
the plain steps' time, and may be overdrawn: then it is filled before the next probe. So on text
that no draft fits, and with a drafter that fits no text, the loss stays near PROBE_SHARE. The
second fills with EARNED_SHARE of what drafting saved: a drafter that was good is soon asked again.
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
EARNED_SHARE = 0.01
"""share of what drafted rounds saved that later ones may lose"""
MOST_EARNED = 32.0
"""plain steps' time that the second purse holds at most"""
PAUSE = 4
"""plain steps ahead of a probe: hard text comes in stretches"""


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
    """seconds by which the first purse is overdrawn; less than 0: what is in it"""
    _earned: float = 0.0
    """seconds in the second"""
    _rested: int = 0
    """plain steps since the last drafted round"""

    def wants_drafts(self) -> bool:
        """The next round drafts: because it pays, or as a probe that is paid for."""
        is_paid_for = self._debt <= 0 or self._earned > 0
        return self.is_on or (is_paid_for and self._rested >= PAUSE)

    def see_drafted(self, *, tokens: int, seconds: float, plain_seconds: float) -> None:
        """A drafted round emitted tokens in seconds; a plain step takes plain_seconds."""
        saved = tokens * plain_seconds - seconds
        self._rested = 0
        if saved > 0:
            most = MOST_EARNED * plain_seconds
            self._earned = min(self._earned + EARNED_SHARE * saved, max(self._earned, most))
        if self.is_on:
            self._saved.append(saved)
            if len(self._saved) == MEMORY:  # a trial that came so far is none any more
                self._patience = MEMORY
            if len(self._saved) >= self._patience and sum(self._saved) < 0:
                self._rest()
        elif saved > 0:
            self._try(saved)
        else:
            self._pay(-saved)

    def see_plain(self, seconds: float) -> None:
        """A plain step was taken where a draft could have been."""
        self._debt -= PROBE_SHARE * seconds
        self._rested += 1

    def _rest(self) -> None:
        lost = -sum(self._saved)
        is_trial = self._patience == TRIAL
        self._debt, self.is_on = 0.0, False
        # what the first rounds lost was the price of knowing; a lost trial is paid back in full
        self._pay(lost if is_trial else lost / len(self._saved))

    def _pay(self, lost: float) -> None:
        """From what was earned, as far as it goes; the rest is owed."""
        paid = min(self._earned, lost)
        self._earned -= paid
        self._debt += lost - paid

    def _try(self, saved: float) -> None:
        self.is_on, self._patience, self._debt = True, TRIAL, 0.0
        self._saved.clear()
        self._saved.append(saved)
