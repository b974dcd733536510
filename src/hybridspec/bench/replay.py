# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Every rule over a trace, offline: the rounds that it would have had, and their seconds.

Time is told twice, by a latency table and by a cost model over the experts of each very block. The
oracle knows every accepted count and takes the quickest way through the text (shortest path), so
that no rule is ever quicker by the same clock.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from hybridspec.bench.ground import Ground
from hybridspec.bench.trace import Trace
from hybridspec.core.options import CorrectionName
from hybridspec.core.records import Block, Routed
from hybridspec.kernels.reference import length
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.policy.alternatives import (
    Alternative,
    Always,
    Look,
    MovingAverage,
    Ratio,
    Threshold,
    TrueCost,
)
from hybridspec.policy.drafting import Drafting
from hybridspec.policy.policy import CPU, Hybrid
from hybridspec.policy.routing import RoutingCosts, correction_of, correlation

THRESHOLDS = tuple(step / 20 for step in range(1, 20))


@dataclass(slots=True)
class Engine:
    """The engine's own hybrid, one request after the other."""

    ground: Ground
    correction: CorrectionName = "off"
    routing: RoutingCosts | None = None
    drafting: Drafting = field(default_factory=Drafting)
    own: Hybrid = field(init=False, repr=False)
    ledger: Ledger = field(init=False, repr=False)

    def begin(self) -> None:
        """As LLM does for a request: what is known of the drafter stays, all else is new."""
        self.own = Hybrid(
            acceptance=self.ground.acceptance,
            latency=self.ground.table,
            correction=correction_of(self.correction, self.routing, CPU),
            drafting=self.drafting,
        )
        context = torch.zeros((), dtype=torch.int32)
        self.ledger = Ledger.opened(torch.tensor(0), length=context, budget=1, slots=1)

    def rows(self, look: Look) -> int:
        """Its choice, corrected by the first router where there are prices."""
        if not self.own.wants_drafts(look.context, look.left):
            return 0
        self.ledger.length.fill_(look.context)
        self.ledger.budget.fill_(look.left)
        block = _drafts(look)
        chosen, shown = self.own.choose(block, self.ledger)
        nothing = torch.empty(0)
        routed = Routed(
            residual=nothing, normed=nothing, expert_ids=look.router, expert_weights=nothing
        )
        return int(self.own.correct(routed, chosen, shown))

    def see(self, look: Look, rows: int, tokens: int) -> None:
        """As the engine's host and device learn."""
        if not rows:
            return self.own.see_plain(look.context)
        self.ledger.committed.fill_(tokens)
        self.own.learn(_drafts(look), _count(rows), _count(rows), self.ledger)
        return self.own.see_drafted(look.context, rows=rows, tokens=tokens)


@dataclass(slots=True)
class NeverRests(Drafting):
    """Drafts whatever it loses: what resting gains or costs."""

    def wants_drafts(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a rule came to."""

    name: str
    rounds: tuple[tuple[int, int], ...]
    """rows (0: a plain step) and tokens of each"""
    table_seconds: float
    model_seconds: float

    @property
    def tokens(self) -> int:
        """Emitted by rounds."""
        return sum(tokens for _, tokens in self.rounds)

    def to_json(self, best: tuple[float, float]) -> dict[str, object]:
        """best: seconds of the two oracles, by the table and by the model."""
        rounds, tokens = len(self.rounds), self.tokens
        lengths = Counter(rows for rows, _ in self.rounds)
        return {
            "name": self.name,
            "rounds": rounds,
            "tokens_per_round": tokens / rounds,
            "rows_per_round": sum(max(rows, 1) for rows, _ in self.rounds) / rounds,
            "table": {
                "tokens_per_second": tokens / self.table_seconds,
                "gap_to_oracle": 1 - best[0] / self.table_seconds,
            },
            "model": {
                "tokens_per_second": tokens / self.model_seconds,
                "gap_to_oracle": 1 - best[1] / self.model_seconds,
            },
            "lengths": {str(rows): count for rows, count in sorted(lengths.items())},
        }


def run(name: str, rule: Alternative, ground: Ground) -> Run:
    """A rule over all texts, one after the other."""
    rounds, table, model = list[tuple[int, int]](), 0.0, 0.0
    accepted = cast("list[int]", ground.trace.accepted.tolist())
    for text, begin, end in ground.trace.texts():
        rule.begin()
        place = begin
        while place < end:
            look = ground.look(text, begin, place)
            rows = rule.rows(look)
            tokens = emitted(accepted[place], rows, end - place)
            rule.see(look, rows, tokens)
            by_table, by_model = ground.seconds(look.context, place, rows)
            rounds.append((rows, tokens))
            table, model = table + by_table, model + by_model
            place += tokens
    return Run(name=name, rounds=tuple(rounds), table_seconds=table, model_seconds=model)


def emitted(accepted: int, rows: int, remaining: int) -> int:
    """Tokens of a round: accepted drafts among its rows and the target's own, to the text's end."""
    return min(accepted + 1, max(rows, 1), remaining)


def oracle(name: str, ground: Ground, *, clock: int) -> Run:
    """The quickest rounds through every text; clock: 0 the table's, 1 the model's."""
    rounds, table, model = list[tuple[int, int]](), 0.0, 0.0
    accepted = cast("list[int]", ground.trace.accepted.tolist())
    block = ground.trace.block_size
    for text, begin, end in ground.trace.texts():
        base = int(ground.trace.prompts[text]) - begin
        best: dict[int, tuple[float, int]] = {end: (0.0, 0)}
        for place in range(end - 1, begin - 1, -1):
            ways = list[tuple[float, int]]()
            for rows in range(min(block, accepted[place] + 1) + 1):
                tokens = emitted(accepted[place], rows, end - place)
                seconds = ground.seconds(base + place, place, rows)[clock]
                ways.append((seconds + best[place + tokens][0], rows))
            best[place] = min(ways)
        place = begin
        while place < end:
            rows = best[place][1]
            tokens = emitted(accepted[place], rows, end - place)
            by_table, by_model = ground.seconds(base + place, place, rows)
            rounds.append((rows, tokens))
            table, model = table + by_table, model + by_model
            place += tokens
    return Run(name=name, rounds=tuple(rounds), table_seconds=table, model_seconds=model)


def compare(ground: Ground) -> list[Run]:
    """Every rule over the trace; oracles by the table and by the model come last."""
    block = ground.trace.block_size
    fixed = [run(f"fixed:{n}", Always(n), ground) for n in range(1, block + 1)]
    tuned = [run(f"threshold {least:.2f}", Threshold(least), ground) for least in THRESHOLDS]
    return [
        run("plain", Always(0), ground),
        *fixed,
        _named("best fixed in hindsight", fixed),
        _named("best threshold in hindsight", tuned),
        run("moving average", MovingAverage(), ground),
        run("ratio a round", Ratio(), ground),
        run("hybrid", Engine(ground), ground),
        run("hybrid that never rests", Engine(ground, drafting=NeverRests()), ground),
        run("the same, one extra row", _corrected(ground, "one"), ground),
        run("the same, a window", _corrected(ground, "window"), ground),
        run("true cost", TrueCost(length.RATE_MEMORY), ground),
        oracle("oracle by table", ground, clock=0),
        oracle("oracle by model", ground, clock=1),
    ]


def _corrected(ground: Ground, correction: CorrectionName) -> Engine:
    return Engine(ground, correction, prices(ground), drafting=NeverRests())


def prices(ground: Ground) -> RoutingCosts:
    """Prices of the correction from the cost model, and the trace's own correlation."""
    return RoutingCosts(
        seconds_per_row=ground.costs.row,
        seconds_per_expert=ground.costs.expert,
        layers=ground.trace.experts.shape[2],
        correlation=slope_to_others(ground.trace),
    )


def slope_to_others(trace: Trace) -> float:
    """s of the trace; policy.routing.correlation says of what."""
    layers = range(trace.experts.shape[2])
    each = torch.stack([new_experts(trace.unions(layer)) for layer in layers], dim=-1)
    return correlation(each[..., 0], each[..., 1:])


def new_experts(unions: Tensor) -> Tensor:
    """[P, BLOCK - 1] float64: distinct experts that rows 2, 3, ... add."""
    return unions.diff(dim=1).double()


def _named(name: str, runs: Sequence[Run]) -> Run:
    best = min(runs, key=lambda own: own.table_seconds)
    return Run(
        name=f"{name}: {best.name}",
        rounds=best.rounds,
        table_seconds=best.table_seconds,
        model_seconds=best.model_seconds,
    )


def _drafts(look: Look) -> Block:
    return Block(tokens=torch.empty(0, dtype=torch.int64), log_odds=look.log_odds)


def _count(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)
