# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tables of docs/policy.md about the embedded pair decoding for real: hindsight and policy_time."""

from typing import Any

from table import markdown

Result = dict[str, Any]


def tables(runs: list[Result], time: Result) -> str:
    """Both tables, as Markdown. runs: of benchmarks/hindsight.py, one a device."""
    parts = [
        "**The embedded pair, decoding for real**, tok/s beside the fixed length that turned out "
        "best in each class, median (least..most):",
        _hindsight(runs),
        *(_circumstances(next(iter(run["classes"].values()))) for run in runs),
        f"**The policy's own time** in a recorded round of the embedded pair, {time['device']}: "
        "rounds that all read whole blocks, by hybrid to whom time is free and by fixed:16.",
        _time(time["arms"]),
        f"Commit {time['commit']}; {time['date'][:10]}; `{time['command']}`.",
    ]
    return "\n\n".join(parts)


def _hindsight(runs: list[Result]) -> str:
    head = ("device", "class", "plain", "best fixed", "", "hybrid", "x plain", "x best fixed")
    rows: list[tuple[str, ...]] = []
    for run in runs:
        for name, found in run["classes"].items():
            arms = {arm["name"]: arm for arm in found["arms"] if arm["mode"] == found["mode"]}
            best = found["best"]
            over = arms["hybrid"]["over_plain_exact"]["median"]
            rows.append(
                (
                    found["device"],
                    name,
                    _speed(arms["plain"]),
                    best,
                    _speed(arms[best]),
                    _speed(arms["hybrid"]),
                    f"{over:.2f}",
                    f"{found['over_best']:.3f}",
                )
            )
    return markdown(head, rows)


def _speed(arm: Result) -> str:
    found = arm["tokens_per_second"]
    return f"{found['median']:,.0f} ({found['low']:,.0f}..{found['high']:,.0f})"


def _time(arms: Result) -> str:
    head = ("rounds of", "us (tenth..ninetieth percentile)", "beyond fixed:16, us")
    names = {
        "fixed:16": "fixed:16",
        "hybrid:off": "hybrid without the correction: choosing and learning",
        "hybrid:one": "hybrid with it",
    }
    rows = [
        (
            names[name],
            f"{found['round_us']:.1f} ({found['p10_us']:.1f}..{found['p90_us']:.1f})",
            f"{found['policy_us']:.1f}",
        )
        for name, found in arms.items()
    ]
    return markdown(head, rows)


def _circumstances(run: Result) -> str:
    return (
        f"{run['device']}; torch {run['versions']['torch']}; commit {run['commit']}; "
        f"{run['date'][:10]}; {run['prompts']} prompts a class x {run['max_new_tokens']} tokens, "
        f"{run['repeats']} interleaved repeats, {run['mode']} mode; `{run['command']}` (`--write` "
        "makes the file). In the first repeat on a GPU kernels are tuned."
    )
