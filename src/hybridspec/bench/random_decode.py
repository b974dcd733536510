# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Policies in the real engine over random weights in a real shape; says so beside every number.

What is real: every launch and byte of a round, and the policies' choices. What is not: the text,
which is scripted; acceptance, drawn from a published world; which experts a position has, steered.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hybridspec.bench.bytes import BANDWIDTH, draft_bytes, expert_bytes, fixed_bytes
from hybridspec.bench.circumstances import observe
from hybridspec.bench.decode import Interrupted, check_names, name_of
from hybridspec.bench.options import Arm, DecodeOptions
from hybridspec.bench.phases import PHASES, PhasedRounds
from hybridspec.bench.random_pair import RandomPair, Scene, Shape, Snapshot, check_fit
from hybridspec.bench.random_report import RandomArmReport, RandomReport
from hybridspec.bench.report import Spread
from hybridspec.core import device as devices
from hybridspec.core import ending
from hybridspec.core.errors import OptionError
from hybridspec.core.options import check_length
from hybridspec.core.records import Stats
from hybridspec.engine.graph import CapturedRounds
from hybridspec.engine.loop import Feed, Tally, decode
from hybridspec.kernels.launch import INTERPRETED
from hybridspec.policy.latency import Latency

Runs = dict[Arm, list[Stats]]
"""runs by arm and repeat"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the separate pass found; each is a mean over rounds."""

    phases_ms: dict[str, float]
    experts: float
    """of all layers together"""
    bytes: float


def run_random_decode(
    options: DecodeOptions,
    *,
    command: str = "",
    progress: Callable[[int, int], None] | None = None,
    shape: Shape | None = None,
) -> RandomReport:
    """Measure what `options` ask for; shape: one that does not ship.

    Raises Interrupted at Ctrl-C, with the report of the repeats that are complete.
    """
    device = _device(options, is_shipped=shape is None)
    shape = shape or Shape.load(options.shape or "")
    scene = Scene(
        mode=options.drafted_mode,
        world=options.known_world,
        persistence=None if options.own_router else options.known_persistence,
        correlation=options.known_correlation,
        context=options.known_context,
        max_new_tokens=options.max_new_tokens,
    )
    _check(options, shape, scene)
    with torch.inference_mode():
        pair = RandomPair.made(shape, scene, device)
        latency = pair.measured() if _has_hybrid(options) else None
        summary = Summary(options=options, pair=pair, scene=scene, latency=latency, command=command)
        return _measured(summary, progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All that a report needs beside the runs."""

    options: DecodeOptions
    pair: RandomPair
    scene: Scene
    latency: Latency | None
    command: str

    def of(self, runs: Runs, costs: dict[Arm, Costs]) -> RandomReport:
        """The report of runs that are complete."""
        pair, scene = self.pair, self.scene
        plain = next((own for arm, own in runs.items() if arm.policy == "plain"), None)
        return RandomReport(
            arms=tuple(self._arm(arm, own, plain, costs[arm]) for arm, own in runs.items()),
            shape=pair.shape.name,
            mode=scene.mode,
            block_size=pair.shape.drafter.block_size,
            acceptance_world=scene.world,
            persistence=scene.persistence,
            correlation=scene.correlation,
            context=scene.context,
            max_new_tokens=scene.max_new_tokens,
            repeats=len(next(iter(runs.values()))),
            bandwidth=BANDWIDTH,
            latency=None if self.latency is None else self.latency.to_json(),
            circumstances=observe(pair.target.head.device, self.command),
        )

    def _arm(
        self, arm: Arm, own: list[Stats], plain: list[Stats] | None, costs: Costs
    ) -> RandomArmReport:
        first, shape = own[0], self.pair.shape
        seconds = Spread.of(stats.seconds / max(stats.rounds, 1) for stats in own)
        return RandomArmReport(
            name=name_of(arm, shape.drafter.block_size),
            tokens_per_second=Spread.of(stats.tokens_per_second for stats in own),
            ms_per_round=Spread.of(1e3 * stats.seconds / max(stats.rounds, 1) for stats in own),
            over_plain=None if plain is None else _speed_up(own, plain),
            rounds=first.rounds,
            rounds_drafted=first.rounds_drafted,
            tokens_per_round=first.tokens_per_round,
            mean_length=first.mean_length,
            lengths=first.lengths,
            phases_ms=costs.phases_ms,
            experts_a_layer=costs.experts / sum(shape.target.routed_layers),
            gigabytes_a_round=costs.bytes / 1e9,
            share_of_bandwidth=costs.bytes / seconds.median / BANDWIDTH if seconds.median else 0.0,
        )


def _device(options: DecodeOptions, *, is_shipped: bool) -> torch.device:
    """CUDA; a CPU where kernels are interpreted, for sizes of a test."""
    device = devices.pick(options.device)
    if device.type == "cuda" or (INTERPRETED and not is_shipped):
        return device
    raise OptionError(
        f"shape {options.shape} with random weights needs a CUDA device, and the device here is "
        f"{device.type}: run it where there is one, or leave the shape out."
    )


def _check(options: DecodeOptions, shape: Shape, scene: Scene) -> None:
    block_size = shape.drafter.block_size
    for arm in options.arms:
        check_length(arm.length, block_size)
    check_names(options.arms, block_size, options)
    check_fit(shape, scene)


def _has_hybrid(options: DecodeOptions) -> bool:
    return any(arm.policy == "hybrid" for arm in options.arms)


def _measured(summary: Summary, progress: Callable[[int, int], None] | None) -> RandomReport:
    """Costs of each arm first, then the repeats, whose order is drawn anew each time."""
    options, pair = summary.options, summary.pair
    runs: Runs = {arm: [] for arm in options.arms}
    costs, lanes = dict[Arm, Costs](), dict[Arm, Lane]()
    total, dice = options.repeats * len(runs), random.Random(0)
    try:
        for arm in runs:
            lanes[arm] = Lane(pair.rounds(arm, summary.latency), pair, summary.scene)
            costs[arm] = lanes[arm].costs()
        for _ in range(options.repeats):
            for arm in dice.sample(list(runs), len(runs)):
                runs[arm].append(lanes[arm].decoded())
                if progress is not None:
                    progress(sum(map(len, runs.values())), total)
    except KeyboardInterrupt:
        ending.begin()
        whole = min(map(len, runs.values()))
        sentence = f"interrupted after {sum(map(len, runs.values()))} of {total} texts"
        runs = {arm: own[:whole] for arm, own in runs.items()}
        raise Interrupted(sentence, summary.of(runs, costs) if whole else None) from None
    return summary.of(runs, costs)


class Lane:
    """An arm whose rounds are recorded and whose request stands at the end of its prompt."""

    def __init__(self, rounds: CapturedRounds, pair: RandomPair, scene: Scene) -> None:
        """Records the rounds."""
        self._rounds, self._pair, self._context = rounds, pair, scene.context
        self._text = pair.script.written_from(scene.context, scene.max_new_tokens)
        self._snapshot = Snapshot(rounds)
        self._record(rounds)

    def decoded(self) -> Stats:
        """The text once more, as the engine decodes; it must be the script's."""
        ahead = 1 if self._pair.target.head.device.type == "cuda" else 0
        tally = Tally()
        written = [
            token
            for emission in decode(self._rounds, tally, ahead=ahead)
            for token in emission.token_ids
        ]
        assert written == self._text, "every policy writes the script"
        self._snapshot.restore()
        return tally.stats()

    def costs(self) -> Costs:
        """The same in pieces, a round at a time."""
        phased = PhasedRounds.of(self._rounds)
        self._record(phased)
        phased.watch.seconds.clear()
        shape, feed = self._pair.shape, Feed.of(phased)
        first, experts, moved = feed.drained, 0, 0
        while feed.left:
            context, entry = feed.context, feed.next()
            fetched = self._pair.experts_fetched()
            experts += fetched
            moved += fixed_bytes(shape.target, context) + fetched * expert_bytes(shape.target)
            moved += entry.is_drafted * draft_bytes(shape.drafter, context)
        states = self._rounds.request.target.recurrent
        assert bool(states.isfinite().all()), "numbers of random weights stay finite"
        rounds = max(feed.drained - first, 1)
        self._snapshot.restore()
        seconds = phased.watch.seconds
        return Costs(
            phases_ms={phase: 1e3 * seconds[phase] / rounds for phase in PHASES},
            experts=experts / rounds,
            bytes=moved / rounds,
        )

    def _record(self, rounds: CapturedRounds) -> None:
        """On CUDA the first round of a kind compiles, the second records, the third replays."""
        if self._pair.target.head.device.type != "cuda":
            return
        for _ in range(3):
            if rounds.drafter is not None:
                rounds.drafted_round()
            rounds.plain_round()
        torch.cuda.synchronize()
        self._snapshot.restore()


def _speed_up(own: list[Stats], plain: list[Stats]) -> Spread:
    return Spread.of(
        ours.tokens_per_second / theirs.tokens_per_second if theirs.seconds else 0.0
        for ours, theirs in zip(own, plain, strict=True)
    )
