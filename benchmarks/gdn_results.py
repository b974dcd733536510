# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tables and the figure of docs/gdn.md, from results/gdn_verify.json."""

from collections.abc import Callable
from typing import Any

from figure import Line, lines
from table import markdown

ARMS = (
    "ours-block",
    "ours-exact",
    "sglang",
    "sglang-bv32",
    "sglang-fold",
    "vllm-triton",
    "vllm-cuda",
    "sglang-plain",
    "vllm-plain",
)
DEFAULTS = {"sglang": "SGLang", "vllm-triton": "vLLM"}
SCOPES = {
    "whole": "from the convolution's input to y, both states committed",
    "whole+norm": "the same with the gated norm, which vLLM's CUDA kernel cannot leave out",
    "delta": "behind the convolution, recurrent state committed; ours fuse the convolution",
}
COLOURS = {
    "ours-block": "#0b7a3b",
    "ours-exact": "#5bbf7e",
    "sglang": "#c2410c",
    "sglang-fold": "#f0a36b",
    "vllm-triton": "#1d4ed8",
}

Result = dict[str, Any]


def tables(run: dict[str, Any]) -> str:
    """All scopes at batch 1, fewer accepted rows, batches, and circumstances, as Markdown."""
    results = run["results"]
    parts = ["![Time of a round by rows](gdn_verify.svg)"]
    for scope, words in SCOPES.items():
        found = [r for r in results if r["scope"] == scope and r["batch"] == 1]
        every = [r for r in found if r["accepted"] == r["rows"]]
        parts += [
            f"**{scope}** ({words}), all rows accepted, median us (p90):",
            table(every, lambda r: r["rows"], "rows"),
        ]
    whole = [r for r in results if r["scope"] == "whole"]
    parts += ["Speed-up over the faster of SGLang's and vLLM's defaults, `whole`:", ratios(whole)]
    few = [r for r in whole if r["batch"] == 1 and r["accepted"] < r["rows"]]
    batches = [r for r in whole if r["batch"] > 1]
    parts += [
        "Fewer accepted, `whole`:",
        table(few, lambda r: f"{r['accepted']} of {r['rows']}", "accepted"),
        "Batches, all accepted, `whole` (for information; the kernels are made for one request):",
        table(batches, lambda r: f"{r['batch']} x {r['rows']}", "requests x rows"),
        circumstances(run),
    ]
    return "\n" + "\n\n".join(parts) + "\n\n"


def table(results: list[Result], key: Callable[[Result], object], head: str) -> str:
    """A line for each key, a column for each arm that has one."""
    arms = [arm for arm in ARMS if any(r["arm"] == arm for r in results)]
    cells: dict[object, dict[str, str]] = {}
    for r in results:
        cells.setdefault(key(r), {})[r["arm"]] = f"{r['median_us']:.0f} ({r['p90_us']:.0f})"
    rows = [(str(name), *(own.get(arm, "") for arm in arms)) for name, own in cells.items()]
    return markdown((head, *arms), rows)


def ratios(whole: list[Result]) -> str:
    """At batch 1, all accepted."""
    times = {
        (r["rows"], r["arm"]): r["median_us"]
        for r in whole
        if r["batch"] == 1 and r["accepted"] == r["rows"]
    }
    rows = []
    for count in sorted({count for count, _ in times}):
        peer = min(DEFAULTS, key=lambda arm: times[count, arm])
        best = times[count, peer]
        ours = (f"{best / times[count, arm]:.2f}x" for arm in ("ours-block", "ours-exact"))
        rows.append((str(count), *ours, f"{DEFAULTS[peer]}, {best:.0f} us"))
    return markdown(("rows", "ours-block", "ours-exact", "over"), rows)


def circumstances(run: dict[str, Any]) -> str:
    """What it was measured with."""
    versions = run["versions"]
    replays = min(r["replays"] for r in run["results"])
    failed = ", ".join(run["failed"]) or "none"
    return (
        f"{run['device']}, driver {run['driver']}, torch {versions['torch']}, triton "
        f"{versions['triton']}; commit {run['commit']}; {run['date'][:10]}; at least {replays} "
        f"replays an arm; arms that failed: {failed}; `{run['command']}`."
    )


def figure(run: dict[str, Any]) -> str:
    """Time by rows in the scope `whole`, all accepted, as SVG."""
    found = [
        r
        for r in run["results"]
        if r["scope"] == "whole" and r["batch"] == 1 and r["accepted"] == r["rows"]
    ]
    series = [
        Line(
            name=arm,
            colour=colour,
            points=sorted((r["rows"], r["median_us"]) for r in found if r["arm"] == arm),
        )
        for arm, colour in COLOURS.items()
        if any(r["arm"] == arm for r in found)
    ]
    return lines("us for 30 layers and the commit, by rows read", series, 200)
