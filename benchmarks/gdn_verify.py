# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Time of verifying and committing one round of Gated DeltaNet, 30 layers of Qwen3.6-35B-A3B.

    python benchmarks/peers/fetch_gdn.py sglang-0.5.23-*.whl vllm-0.33.0-*.whl
    python benchmarks/gdn_verify.py

A round is one captured graph: 30 layers, each with its own pool of states, as one chain on one
stream, and the commit. Arms take turns replay by replay, each with as many copies of its buffers
as lie beyond the L2 cache, which is flushed before every replay. An arm is checked against float64
before it is timed; one that fails is listed and the others go on. Scopes: `delta` from the
convolution's output to y and the committed recurrent state; `whole` from the convolution's input
to y, both states committed; `whole+norm` with the gated norm. Writes results/gdn_verify.json.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import get_args

import ours_gdn
import torch
from arguments import count, typed
from gdn_problem import Arm, Problem, Scope, Shape, check
from peers import gdn
from torch import Tensor

from hybridspec.bench.circumstances import observe

RESULT = Path(__file__).parent / "results" / "gdn_verify.json"
ROWS = (1, 2, 4, 6, 8, 12, 16)
BATCHES = (1, 16, 64)
BATCHED_ROWS = (4, 8, 16)
LAYERS = 30
FLUSH = 256 << 20
"""bytes, five times the L2 cache of an H200"""
BEYOND_L2 = 4 * 60e6
"""bytes that the copies of an arm touch before one is used again"""
WARM_UP = 5
"""replays of each arm that are not counted"""

BUILDERS: dict[str, Callable[[Problem], Arm]] = {**gdn.ARMS, **ours_gdn.ARMS}
"""name of an arm -> what builds it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One size in one scope: all arms that know it are timed together."""

    rows: int
    batch: int
    accepted: int
    scope: Scope

    def problem(self, seed: int = 0, scratch: Tensor | None = None) -> Problem:
        """The round on the current GPU."""
        return Problem(
            **asdict(self), device=torch.device("cuda"), seed=seed, scratch=scratch, layers=LAYERS
        )

    def __str__(self) -> str:
        return f"{self.scope}, {self.batch} x {self.rows} rows, {self.accepted} accepted"


def fits(name: str, rows: int, scope: Scope) -> bool:
    """False where the arm has no such size or scope."""
    if name == "vllm-cuda":
        return rows <= 8 and scope == "whole+norm"
    if name.startswith("ours") and scope == "delta":
        return False  # the convolution is fused
    return rows == 1 or not name.endswith("-plain")


class Entry:
    """One arm in one case: its copies, their graphs, the times of the replays."""

    def __init__(self, name: str, case: Case, scratch: Tensor | None) -> None:
        self.name, self.case = name, case
        first = BUILDERS[name](case.problem(0, scratch))
        self.errors = check(first)
        copies = 1 if case.batch > 1 else max(1, -int(-BEYOND_L2 // first.touched))
        self.touched = first.touched
        others = [BUILDERS[name](case.problem(seed)) for seed in range(1, copies)]
        self.arms = [first, *others]
        self.graphs = [capture(arm) for arm in self.arms]
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def replay(self, turn: int, counts: bool) -> None:
        """Enqueue one replay between two events."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graphs[turn % len(self.graphs)].replay()
        end.record()
        if counts:
            self.events.append((start, end))

    def result(self) -> dict[str, object]:
        """Times in microseconds, after a synchronisation."""
        times = sorted(1e3 * start.elapsed_time(end) for start, end in self.events)
        cuts = quantiles(times, n=10, method="inclusive")
        return {
            "arm": self.name,
            **asdict(self.case),
            "median_us": cuts[4],
            "p90_us": cuts[8],
            "min_us": times[0],
            "replays": len(times),
            "copies": len(self.arms),
            "touched_bytes": self.touched,
            "errors": self.errors,
        }


def capture(arm: Arm) -> torch.cuda.CUDAGraph:
    """One round as a graph, after two rounds that compile and allocate."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        arm.round()
        arm.round()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        arm.round()
    return graph


class Flush:
    """Makes the L2 cache hold nothing of an arm: by writing, or by writing and reading."""

    def __init__(self, kind: str) -> None:
        self.reads = kind == "read"
        self.written = torch.empty(FLUSH // 4, dtype=torch.float32, device="cuda")
        self.read = torch.zeros_like(self.written)

    def __call__(self) -> None:
        """Enqueue it; after reading, no line waits to be written back in the timed region."""
        self.written.zero_()
        if self.reads:
            self.read.sum()


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """All accepted at batch 1 first, then fewer accepted, then batches."""
    sizes = [(rows, 1, rows) for rows in asked.rows]
    for rows in asked.rows:
        sizes += [(rows, 1, few) for few in sorted({max(1, rows // 2), 1} - {rows}, reverse=True)]
    sizes += [(rows, batch, rows) for batch in (16, 64) for rows in BATCHED_ROWS]
    for rows, batch, accepted in sizes:
        if rows in asked.rows and batch in asked.batch:
            for scope in asked.scope:
                yield Case(rows=rows, batch=batch, accepted=accepted, scope=scope)


def shared_states(case: Case) -> Tensor | None:
    """What all arms use for their states a row, where each arm's own would not fit in memory."""
    if case.batch == 1:
        return None
    shape = Shape()
    count = LAYERS * (1 + case.batch * case.rows) * shape.HV * shape.V * shape.K
    return torch.empty(count, dtype=torch.float32, device="cuda").normal_(0, 0.1)


def measure(
    case: Case, arms: list[str], replays: int, flush: Flush
) -> tuple[list[dict[str, object]], dict[str, str]]:
    """Results of the arms that work, and why the others do not."""
    entries: list[Entry] = []
    failed: dict[str, str] = {}
    scratch = shared_states(case)
    for name in arms:
        if not fits(name, case.rows, case.scope):
            continue
        try:
            entries.append(Entry(name, case, scratch))
        except Exception:
            failed[f"{name}: {case}"] = traceback.format_exc(limit=-3)
    for turn in range(-WARM_UP, replays):
        for entry in entries:
            flush()
            entry.replay(turn, counts=turn >= 0)
    torch.cuda.synchronize()
    return [entry.result() for entry in entries], failed


def preflight(arms: list[str]) -> dict[str, str]:
    """Check each arm in a process of its own, so that a crash of one does not end the others."""
    command = [sys.executable, str(Path(__file__).resolve()), "--only-check", "--arms"]
    runs = {
        name: subprocess.Popen(
            [*command, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for name in arms
    }
    texts = {name: run.communicate()[0] for name, run in runs.items()}
    for name, text in texts.items():
        print(f"preflight of {name}: {text.strip() if runs[name].returncode == 0 else 'failed'}")
    return {name: texts[name][-3000:] for name, run in runs.items() if run.returncode != 0}


def only_check(arms: list[str]) -> None:
    """Errors of each arm at a few sizes; an exception where it is wrong."""
    scopes: tuple[Scope, ...] = get_args(Scope)
    for name in arms:
        worst = 0.0
        for rows, batch, accepted in ((1, 1, 1), (4, 1, 2), (8, 3, 8)):
            for scope in scopes:
                if fits(name, rows, scope):
                    case = Case(rows=rows, batch=batch, accepted=accepted, scope=scope)
                    errors = check(BUILDERS[name](case.problem()))
                    worst = max(worst, errors["recurrent"])
        print(f"state within {worst:.1e} of its largest element")


def table(results: list[dict[str, object]], arms: list[str]) -> str:
    """Medians in microseconds, a line for each case."""
    found: dict[str, dict[str, float]] = {}
    for result in results:
        key = Case(**{name: result[name] for name in ("rows", "batch", "accepted", "scope")})
        found.setdefault(str(key), {})[str(result["arm"])] = float(str(result["median_us"]))
    lines = [" ".join([f"{'median us':44}", *(f"{name:>13}" for name in arms)])]
    for case, times in found.items():
        cells = (f"{times[name]:13.1f}" if name in times else f"{'-':>13}" for name in arms)
        lines.append(" ".join([f"{case:44}", *cells]))
    return "\n".join(lines)


def write(file: Path, **members: object) -> None:
    """What is known so far, so that a run that is cut short leaves it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": "gdn_verify", **members}
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", nargs="+", default=list(BUILDERS), choices=list(BUILDERS))
    parser.add_argument("--rows", nargs="+", type=count, default=list(ROWS))
    parser.add_argument("--batch", nargs="+", type=count, default=list(BATCHES), choices=BATCHES)
    parser.add_argument(
        "--scope", nargs="+", default=list(get_args(Scope)), choices=get_args(Scope)
    )
    parser.add_argument("--replays", type=count, default=60)
    parser.add_argument("--flush", choices=("write", "read"), default="read")
    parser.add_argument("--seconds", type=float, default=480, help="start no case after this")
    parser.add_argument("--only-check", action="store_true", help="check the arms, time nothing")
    parser.add_argument("--no-preflight", action="store_true", help="no check in own processes")
    parser.add_argument("--commit", help="of the checkout, where git does not know it")
    parser.add_argument("--output", type=Path, default=RESULT)
    return parser.parse_args()


def main() -> int:
    """Measure, write after every case, print the table; 1 where an arm failed."""
    asked, began = parse(), time.monotonic()
    if not torch.cuda.is_available():
        print("no CUDA device is visible here: this benchmark needs one", file=sys.stderr)
        return 2
    if asked.only_check:
        only_check(asked.arms)
        return 0
    failed = {} if asked.no_preflight else preflight(asked.arms)
    arms = [name for name in asked.arms if name not in failed]
    facts = observe(torch.device("cuda"), typed()).to_json()
    facts["commit"] = asked.commit or facts["commit"]
    facts["protocol"] = {"layers": LAYERS, "flush": asked.flush, "flush_bytes": FLUSH}
    results: list[dict[str, object]] = []
    left_out: list[str] = []
    flush = Flush(asked.flush)
    for case in cases(asked):
        if time.monotonic() - began > asked.seconds:
            left_out.append(str(case))
            continue
        found, wrong = measure(case, arms, asked.replays, flush)
        results += found
        failed |= wrong
        gc.collect()
        torch.cuda.empty_cache()
        write(asked.output, results=results, failed=failed, left_out=left_out, **facts)
    write(asked.output, results=results, failed=failed, left_out=left_out, **facts)
    for name, text in failed.items():
        print(f"failed: {name}\n{text}")
    print(table(results, asked.arms))
    print(f"{len(left_out)} cases left out, {time.monotonic() - began:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
