# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Fixed and hybrid behind one interface; plain decoding drafts nothing and asks neither.

On the host, from rounds that were drained: does the next one draft? On the device, inside a drafted
round: rows to choose, rows to show the first router, rows to keep after it, and what is learnt at
the end. There counts are int32 scalars, and nothing asks for their value.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hybridspec import kernels
from hybridspec.core.records import Block, Routed
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.kernels.reference.clock import Clock
from hybridspec.kernels.reference.correction import Correction
from hybridspec.kernels.reference.length import LengthState, LengthTables
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.drafting import Drafting
from hybridspec.policy.latency import Latency

CPU = torch.device("cpu")


class Policy(Protocol):
    """Whether each round of one request drafts, and how many rows it reads."""

    def wants_drafts(self, context: int, left: int) -> bool:
        """Whether the next round drafts; left: tokens that may still be emitted, at least 1."""
        ...

    def see_plain(self, context: int) -> None:
        """A plain round was taken at this context."""
        ...

    def see_drafted(self, context: int, *, rows: int, tokens: int) -> None:
        """A drafted round at this context read rows and emitted tokens."""
        ...

    def reset(self) -> None:
        """Another text begins."""
        ...

    def begin(self) -> None:
        """A drafted round begins."""
        ...

    def choose(self, block: Block, ledger: Ledger) -> tuple[Tensor, Tensor]:
        """Rows worth reading, before any was read, and rows to read up to the first router.

        Both 1..block_size; after the end they may be 0.
        """
        ...

    def correct(self, routed: Routed, rows: Tensor, shown: Tensor) -> Tensor:
        """Rows to read on, at most `shown`."""
        ...

    def learn(self, block: Block, chosen: Tensor, rows: Tensor, ledger: Ledger) -> None:
        """What came of the round: rows that were chosen and read to the end; settled by now."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number of rows; at 1 the drafts are made and not read."""

    rows: int
    device: torch.device = field(default=CPU, kw_only=True)
    _count: Tensor = field(init=False, repr=False, compare=False)
    """[] int32: rows"""

    def __post_init__(self) -> None:
        count = torch.tensor(self.rows, dtype=torch.int32, device=self.device)
        object.__setattr__(self, "_count", count)

    def wants_drafts(self, context: int, left: int) -> bool:
        """Always."""
        return True

    def see_plain(self, context: int) -> None:
        """Plain decoding, or a test's: nothing to keep."""

    def see_drafted(self, context: int, *, rows: int, tokens: int) -> None:
        """Nothing to keep."""

    def reset(self) -> None:
        """Nothing to forget."""

    def begin(self) -> None:
        """No clock."""

    def choose(self, block: Block, ledger: Ledger) -> tuple[Tensor, Tensor]:
        """The fixed number, and no row more."""
        return self._count, self._count

    def correct(self, routed: Routed, rows: Tensor, shown: Tensor) -> Tensor:
        """No row less."""
        return rows

    def learn(self, block: Block, chosen: Tensor, rows: Tensor, ledger: Ledger) -> None:
        """Nothing to learn."""


@dataclass(slots=True, kw_only=True)
class Hybrid:
    """Rows by expected tokens and measured time, put right by what the first router fetches."""

    acceptance: Acceptance
    latency: Latency
    correction: Correction | None = None
    """what earlier requests saw of the first router; None: rows are read as they were chosen"""
    kappa: float = 1.0
    """price of a second, in units of the run's own rate"""
    drafting: Drafting = field(default_factory=Drafting)
    clock: Clock | None = None
    """what earlier requests saw of rounds; None: seconds are the table's, as they are"""
    learning: AcceptanceState | None = None
    """what earlier requests saw of drafts; None: the coefficients of acceptance, as they are"""
    device: torch.device = CPU
    tables: LengthTables = field(init=False, repr=False)
    """acceptance, latency and what else rounds read"""
    state: LengthState = field(init=False, repr=False)
    """what rounds have learnt"""

    def __post_init__(self) -> None:
        def floats(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=self.device)

        learning, loaded = self.learning, self.acceptance
        self.tables = LengthTables(  # coefficients that are learnt are read where they are written
            slope=floats(loaded.slope) if learning is None else learning.slope,
            intercepts=floats(loaded.intercepts) if learning is None else learning.served,
            contexts=torch.tensor(
                list(self.latency.seconds), dtype=torch.int32, device=self.device
            ),
            seconds=floats(list(self.latency.seconds.values())),
            kappa=self.kappa,
            above=0 if self.correction is None else self.correction.above,
            clock=self.clock,
            exploration=None if learning is None else learning.exploration,
        )
        self.state = LengthState.empty(self.tables.seconds.shape[1], self.device)

    def wants_drafts(self, context: int, left: int) -> bool:
        """While drafted rounds save time, and as a probe; not where none could, near the end."""
        if not self.drafting.wants_drafts():
            return False
        latency = self.latency
        if left >= latency.block_size:
            return True
        return latency.drafted_at(context, rows=left) < left * latency.plain_at(context)

    def see_plain(self, context: int) -> None:
        """Plain steps pay for probes."""
        self.drafting.see_plain(self.latency.plain_at(context))

    def see_drafted(self, context: int, *, rows: int, tokens: int) -> None:
        """In the table's seconds, not the clock's."""
        self.drafting.see_drafted(
            tokens=tokens,
            seconds=self.latency.drafted_at(context, rows=rows),
            plain_seconds=self.latency.plain_at(context),
        )

    def reset(self) -> None:
        """Forget the run's rate, and how this text differed from others."""
        self.state.reset()
        if self.learning is not None:
            self.learning.reset()

    def begin(self) -> None:
        """By the device's own clock."""
        if self.clock is not None:
            kernels.of(self.device).begin(self.clock)

    def choose(self, block: Block, ledger: Ledger) -> tuple[Tensor, Tensor]:
        """n* = argmax_n A(n) - kappa lambda T(n, c) over all n, and those to show the router."""
        return kernels.of(self.device).choose(
            block.log_odds, self.tables, self.state, ledger.length, ledger.budget, ledger.is_done
        )

    def correct(self, routed: Routed, rows: Tensor, shown: Tensor) -> Tensor:
        """The same over the lengths around n*, each priced by its own experts there."""
        if self.correction is None:
            return rows
        correct = kernels.of(self.device).correct
        return correct(routed.expert_ids, rows, shown, self.tables, self.state, self.correction)

    def learn(self, block: Block, chosen: Tensor, rows: Tensor, ledger: Ledger) -> None:
        """The rate, how likely drafts are right, how long rounds take, what experts cost."""
        kernels.of(self.device).learn(
            block.log_odds, chosen, rows, ledger, self.state,
            self.learning, self.clock, self.correction,
        )  # fmt: skip
