# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a round costs on a GPU: plain step, draft, verification by rows; random weights.

    python benchmarks/round_time.py [--shape qwen3.6-35b-a3b] [--context 1024] [--repeats 30]

Every arm is one captured graph; arms take turns. Each replay reads other random tokens, at another
position, so that experts, states and keys differ. Experts are the model's own choice, or steered
with a persistence (bench/overlap.py); they are counted. The floor is the bytes that were needed
(weights once, distinct experts, states, keys) at 4.0 TB/s. Writes results/round_time.json, or
--output.
"""

import argparse
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from arguments import count, need_cuda

from hybridspec.bench.bytes import BANDWIDTH, expert_bytes, fixed_bytes
from hybridspec.bench.circumstances import observe
from hybridspec.bench.overlap import steered_experts
from hybridspec.bench.random_weights import random_drafter, random_target
from hybridspec.bench.shape import shape_directory
from hybridspec.core.options import MAX_ROWS, Mode
from hybridspec.engine.graph import recorded
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.fused import FusedState, FusedTarget
from hybridspec.models.fused_draft import FusedDrafter
from hybridspec.models.target_config import TargetConfig

RESULT = Path(__file__).parent / "results" / "round_time.json"
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
OWN = "own"
"""the router's own choice of experts"""
PERSISTENCES = (0.0, 0.4)
PLACES = 32
"""positions at which a replay may begin"""


def captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`run` as a graph, after one call outside it that compiles."""
    run()
    return recorded(run)


class Arms:
    """The graphs of one mode, over one request."""

    def __init__(self, target: FusedTarget, drafter: FusedDrafter, context: int) -> None:
        device = target.head.device
        self.target, self.drafter, self.context = target, drafter, context
        self.state: FusedState = target.empty_state(context + 4 * MAX_ROWS)
        self.draft_state = drafter.empty_state(context + 4 * MAX_ROWS)
        self.rows = torch.ones((), dtype=torch.int32, device=device)
        self.one = torch.ones((), dtype=torch.int32, device=device)
        self.block = torch.zeros(MAX_ROWS, dtype=torch.int64, device=device)
        prompt = torch.randint(target.config.vocab_size, (context,), device=device)
        target.read_prompt(prompt, self.state)
        self.draft_state.injected.fill_(context)
        self.graphs = {
            ("plain", OWN): captured(self._plain),
            ("commit", OWN): captured(lambda: self.state.commit(self.rows)),
            ("draft", OWN): captured(lambda: drafter.propose(self.block[0], self.draft_state)),
            ("verify", OWN): captured(lambda: self._read(target, self.block, self.rows)),
        }
        for persistence in PERSISTENCES:
            steered = replace(target, steered=self._table(persistence))
            self.graphs["verify", str(persistence)] = captured(
                lambda steered=steered: self._read(steered, self.block, self.rows)
            )
        self.reset()

    def reset(self) -> None:
        """The length as it was or a little more; recurrent states go on from what was committed."""
        self.state.length.fill_(self.context + random.randrange(PLACES))
        self.draft_state.injected.fill_(self.context)

    def _table(self, persistence: float) -> torch.Tensor:
        config = self.target.config
        layers, experts, top = (
            len(config.layer_types),
            config.num_experts,
            config.num_experts_per_tok,
        )
        last = steered_experts(
            layers, PLACES + MAX_ROWS, experts=experts, top=top, persistence=persistence
        )
        table = last.new_zeros(layers, self.context, top)
        return torch.cat((table, last), dim=1).to(self.rows.device)

    def _plain(self) -> None:
        self._read(self.target, self.block[:1], self.one)
        self.state.commit(self.one)

    def _read(self, target: FusedTarget, tokens: torch.Tensor, rows: torch.Tensor) -> None:
        target.read_on(target.read_to_router(tokens, rows, self.state), rows, self.state)

    def time(self, name: str, choice: str, rows: int) -> tuple[float, int]:
        """Seconds of one replay, and routed experts that it fetched in all layers."""
        config = self.target.config
        self.rows.fill_(rows)
        self.block.random_(config.vocab_size)
        self.reset()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        self.graphs[name, choice].replay()
        end.record()
        end.synchronize()
        read = self.target.buffers.stream.residual[:rows]
        if not bool(read.isfinite().all() and self.state.recurrent.isfinite().all()):
            raise RuntimeError(f"{name} of {rows} rows left numbers that are not finite")
        return start.elapsed_time(end) / 1e3, int(self.target.fetched.sum())


def measured(arms: Arms, repeats: int) -> list[dict[str, object]]:
    """All arms of one mode, turn by turn."""
    plan = [("plain", OWN, 1), ("commit", OWN, MAX_ROWS), ("draft", OWN, 1)]
    choices = (OWN, *map(str, PERSISTENCES))
    plan += [("verify", choice, rows) for choice in choices for rows in ROWS]
    samples: dict[tuple[str, str, int], list[tuple[float, int]]] = {arm: [] for arm in plan}
    for _ in range(repeats):
        for arm in plan:
            samples[arm].append(arms.time(*arm))
    config, found = arms.target.config, list[dict[str, object]]()
    for (name, choice, rows), own in samples.items():
        seconds = sorted(one for one, _ in own)
        entry: dict[str, object] = {
            "arm": name,
            "choice": choice,
            "rows": rows,
            "median_us": statistics.median(seconds) * 1e6,
            "p10_us": seconds[len(seconds) // 10] * 1e6,
            "p90_us": seconds[-1 - len(seconds) // 10] * 1e6,
        }
        if name in ("plain", "verify"):
            experts = statistics.mean(count for _, count in own)
            needed = fixed_bytes(config, arms.context) + experts * expert_bytes(config)
            floor = needed / BANDWIDTH
            entry |= {
                "experts_a_layer": experts / sum(config.routed_layers),
                "bytes": needed,
                "floor_us": floor * 1e6,
                "over_floor": statistics.median(seconds) / floor,
            }
        found.append(entry)
    return found


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3.6-35b-a3b")
    parser.add_argument("--context", type=count, default=1024)
    parser.add_argument("--repeats", type=count, default=30)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    need_cuda()
    device = torch.device("cuda")
    directory = shape_directory(arguments.shape)
    config = TargetConfig.load(directory / "target")
    draft_config = DraftConfig.load(directory / "drafter")
    modes: dict[str, object] = {}
    with torch.inference_mode():
        fast = random_target(config, mode="fast", taps=draft_config.target_layer_ids, device=device)
        drafter = random_drafter(draft_config, fast)
        names: tuple[Mode, ...] = ("fast", "exact")
        for mode in names:
            arms = Arms(fast.using(mode), drafter, arguments.context)
            modes[mode] = measured(arms, arguments.repeats)
            for entry in modes[mode]:  # pyright: ignore
                print(
                    mode, {k: round(v, 2) if isinstance(v, float) else v for k, v in entry.items()}
                )
    result = {
        "benchmark": "round_time",
        "shape": arguments.shape,
        "weights": "random",
        "context": arguments.context,
        "bandwidth": BANDWIDTH,
        "modes": modes,
        **observe(
            device,
            f"python benchmarks/round_time.py --shape {arguments.shape} "
            f"--context {arguments.context} --repeats {arguments.repeats}",
        ).to_json(),
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
