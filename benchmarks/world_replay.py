# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Every policy in every world of the 35B shape, by the cost of rounds as a GPU took them.

    OMP_NUM_THREADS=1 python benchmarks/world_replay.py [--positions 8000]

No model runs: acceptance is drawn from a world and experts are steered, as in `bench decode
--random-weights`, but for more positions than a GPU's minute holds, so that differences of a tenth
of a per cent show. Seconds are step + draft + row n + expert U with the four numbers of
results/decode_random.json. Writes results/world_replay.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any, cast, get_args

import torch
from arguments import count

from hybridspec.bench.circumstances import observe
from hybridspec.bench.ground import Costs, Ground
from hybridspec.bench.options import World
from hybridspec.bench.overlap import novelty_correlation, steered_experts
from hybridspec.bench.random_pair import Shape
from hybridspec.bench.replay import compare, prices
from hybridspec.bench.trace import Trace
from hybridspec.bench.worlds import draw_acceptances
from hybridspec.policy.acceptance import Acceptance

RESULTS = Path(__file__).parent / "results"
SCENES = (
    *((world, persistence, 0.0) for world in get_args(World) for persistence in (0.0, 0.4, 0.6)),
    ("mixed", 0.4, 0.4),
    ("mixed", 0.4, 0.8),
)
"""world, persistence, correlation"""
CONTEXT = 1024


def costs_of(run: dict[str, Any]) -> Costs:
    """Of the arms that read as many rows in every round, and the prices that were measured."""
    prices = run["latency"]["routing"]
    row, expert = prices["seconds_per_row"], prices["seconds_per_expert"]
    arms = {arm["name"]: arm for arm in run["arms"]}

    def beside(name: str, rows: int) -> float:
        """Seconds that neither rows nor experts took."""
        arm = arms[name]
        experts = expert * arm["experts_a_layer"] * prices["layers"]
        return arm["ms_per_round"]["median"] / 1e3 - row * rows - experts

    step = beside("plain", 1)
    fixed = {name: int(name.partition(":")[2]) for name in arms if name.startswith("fixed:")}
    drafts = [beside(name, rows) - step for name, rows in fixed.items()]
    return Costs(step=step, draft=sum(drafts) / len(drafts), row=row, expert=expert)


def trace_of(shape: Shape, world: World, persistence: float, correlation: float, P: int) -> Trace:
    """P positions of one text."""
    target, block = shape.target, shape.drafter.block_size
    drawn = draw_acceptances(world, positions=P, drafts=block - 1)
    table = steered_experts(
        len(target.layer_types),
        P + block,
        experts=target.num_experts,
        top=target.num_experts_per_tok,
        persistence=persistence,
        correlation=correlation,
    ).to(torch.int16)
    rows = torch.arange(P)[:, None] + torch.arange(block)
    return Trace(
        key={"world": world},
        classes=(world,),
        begins=torch.tensor([0, P]),
        prompts=torch.tensor([CONTEXT]),
        budgets=torch.tensor([P]),
        tokens=torch.zeros(P, dtype=torch.int32),
        accepted=drawn.accepted.long().cumprod(1).sum(1).to(torch.uint8),
        log_odds=drawn.log_odds,
        experts=table.transpose(0, 1)[rows],
        seconds=torch.zeros(P, 3),
    )


def replayed(shape: Shape, scene: tuple[World, float, float], costs: Costs, P: int) -> Any:
    """What every policy came to in one scene."""
    world, persistence, correlation = scene
    trace = trace_of(shape, world, persistence, correlation, P)
    ground = Ground(
        trace=trace, acceptance=Acceptance.uninformed(trace.block_size - 1), costs=costs
    )
    runs = compare(ground)
    best = (runs[-2].table_seconds, runs[-1].model_seconds)
    return {
        "world": world,
        "persistence": persistence,
        "correlation": correlation,
        "correlation_with_others": novelty_correlation(trace.experts[:, 0].transpose(0, 1)),
        "slope_to_others": prices(ground).correlation,
        "policies": [run.to_json(best) for run in runs],
    }


def main() -> int:
    """Replay and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--positions", type=count, default=8000)
    parser.add_argument("--output", type=Path, default=RESULTS / "world_replay.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    run = json.loads((RESULTS / "decode_random.json").read_text(encoding="utf-8"))
    costs, shape = costs_of(run), Shape.load(run["shape"])
    found = list[Any]()
    for scene in cast("tuple[tuple[World, float, float], ...]", SCENES):
        found.append(replayed(shape, scene, costs, asked.positions))
        named = {own["name"]: own["model"]["tokens_per_second"] for own in found[-1]["policies"]}
        print(scene, {name: round(speed) for name, speed in named.items() if "old" not in name})
    command = f"python benchmarks/world_replay.py --positions {asked.positions}"
    result = {
        "benchmark": "world_replay",
        "shape": run["shape"],
        "positions": asked.positions,
        "costs": {name: getattr(costs, name) for name in ("step", "draft", "row", "expert")},
        "costs_of": {name: run[name] for name in ("device", "commit", "date")},
        "scenes": found,
        **observe(torch.device("cpu"), command).to_json(),
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
