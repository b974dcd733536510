# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`hybridspec replay`: every policy over recorded traces, offline."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from hybridspec.core.errors import OptionError

if TYPE_CHECKING:
    from hybridspec.bench.trace import Trace
    from hybridspec.policy.acceptance import Acceptance


def replay(
    *files: Path,
    acceptance: Path | None = None,
    latency: Path | None = None,
    json: Annotated[bool, Parameter(show_default=False)] = False,
) -> int:
    """Run every policy over traces, and compare them with an oracle.

    Args:
        files: Traces that `hybridspec trace` wrote, each compared for itself.
        acceptance: Acceptance file of the traces' pair; the embedded pair's own, or the drafter's
            own confidence, if not given.
        latency: Latency table of the traces' pair; the cost model's means if not given.
        json: Print one list instead of tables.
    """
    if not files:
        raise OptionError("replay needs at least one FILE that hybridspec trace wrote.")
    from hybridspec.bench.trace import Trace  # torch is loaded only when all flags are right

    traces = [Trace.load(path) for path in files]  # all, before the first is replayed
    found = [
        {"trace": str(path), **_compared(trace, acceptance, latency)}
        for path, trace in zip(files, traces, strict=True)
    ]
    if json:
        print(json_format.dumps(found, indent=1))
        return 0
    for one in found:
        print("\n".join(_lines(one)))
    return 0


def _compared(trace: "Trace", acceptance: Path | None, latency: Path | None) -> dict[str, Any]:
    from hybridspec.bench.ground import Costs, Ground
    from hybridspec.bench.replay import compare
    from hybridspec.policy.latency import Latency

    table = None
    if latency is not None:
        table = Latency.load(latency, key=_pair(trace), rows=trace.block_size)
    ground = Ground(
        trace=trace,
        acceptance=_acceptance(trace, acceptance),
        costs=Costs.of_35b(trace),
        latency=table,
    )
    runs = compare(ground)
    best = (runs[-2].table_seconds, runs[-1].model_seconds)
    return {
        "key": dict(trace.key),
        "positions": len(trace.tokens),
        "texts": len(trace.classes),
        "table": "the cost model's means" if latency is None else latency.name,
        "policies": [run.to_json(best) for run in runs],
    }


def _pair(trace: "Trace") -> dict[str, str]:
    return {name: trace.key[name] for name in ("target", "drafter") if name in trace.key}


def _acceptance(trace: "Trace", named: Path | None) -> "Acceptance":
    from hybridspec.core.errors import TableError
    from hybridspec.models.embedded import DRAFTER
    from hybridspec.policy.acceptance import Acceptance

    drafts = trace.block_size - 1
    if named is not None:
        return Acceptance.load(named, key=_pair(trace), drafts=drafts)
    try:
        return Acceptance.load(DRAFTER / "acceptance.json", key=_pair(trace), drafts=drafts)
    except TableError:
        return Acceptance.uninformed(drafts)


def _lines(found: dict[str, Any]) -> list[str]:
    head = ("policy", "tok/round", "rows", "table tok/s", "gap", "model tok/s", "gap", "lengths")
    rows = [head, *map(_cells, found["policies"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
    title = (
        f"{found['trace']}: {found['positions']} positions of {found['texts']} texts; "
        f"table: {found['table']}; gap: to the oracle of the same clock"
    )
    return [title, *("  ".join(_padded(row, widths)).rstrip() for row in rows)]


def _padded(row: tuple[str, ...], widths: list[int]) -> list[str]:
    first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=False))
    return [first.strip().ljust(widths[0]), *others, row[-1]]


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    """The three lengths that were read most often, 0 for a plain step."""
    most = sorted(one["lengths"].items(), key=lambda own: -own[1])[:3]
    shares = (f"{rows}:{count / one['rounds']:.0%}" for rows, count in most)
    return (
        one["name"],
        f"{one['tokens_per_round']:.2f}",
        f"{one['rows_per_round']:.1f}",
        f"{one['table']['tokens_per_second']:.0f}",
        f"{one['table']['gap_to_oracle']:.1%}",
        f"{one['model']['tokens_per_second']:.0f}",
        f"{one['model']['gap_to_oracle']:.1%}",
        " ".join(shares),
    )
