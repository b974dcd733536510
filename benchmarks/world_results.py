# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tables of docs/policy.md about the worlds of the 35B shape."""

from typing import Any

from table import circumstances, markdown

Result = dict[str, Any]
RULES = {
    "plain": "plain",
    "fixed:16": "fixed:16",
    "best fixed in hindsight": "best fixed",
    "best threshold in hindsight": "best threshold",
    "moving average": "moving average",
    "ratio a round": "ratio",
    "hybrid": "hybrid",
    "the same, one extra row": "one row more",
    "the same, a window": "window",
    "true cost": "true cost",
    "oracle by model": "oracle",
}
"""rules of a replay, and their columns"""


def tables(worlds: Result, runs: list[Result]) -> str:
    """Both tables, as Markdown. runs: decoded on a GPU, in one world at several correlations."""
    costs = worlds["costs"]
    parts = [
        f"**Worlds of the 35B shape**, tok/s of every rule over {worlds['positions']:,} positions. "
        "No model runs here: acceptance is drawn and experts are steered as on the GPU, and a "
        f"round takes {costs['step'] * 1e6:.0f} us, its draft and commit "
        f"{costs['draft'] * 1e6:.0f}, a row {costs['row'] * 1e6:.0f} and a distinct expert "
        f"{costs['expert'] * 1e6:.2f}, as measured there ({worlds['costs_of']['device']}, commit "
        f"{worlds['costs_of']['commit']}). p: persistence of the experts, c: correlation of a "
        "token's new experts at the first router with the others'; one row more, window: hybrid's "
        "correction. True cost knows what each length will take, the oracle what is accepted too.",
        _worlds(worlds["scenes"]),
        _gains(worlds["scenes"]),
        f"torch {worlds['versions']['torch']}; commit {worlds['commit']}; {worlds['date'][:10]}; "
        f"`{worlds['command']}`.",
        "**The correction in captured rounds**, median (least..most):",
        _corrections(runs),
        *map(circumstances, runs),
    ]
    return "\n\n".join(parts)


def _speeds(scene: Result) -> dict[str, float]:
    """By rule; the best fixed length goes by its rule's name."""
    policies = scene["policies"]
    named = {own["name"]: own["model"]["tokens_per_second"] for own in policies}
    hindsight = {name.split(":")[0]: speed for name, speed in named.items() if "hindsight" in name}
    return named | hindsight


def _worlds(scenes: list[Result]) -> str:
    rows = []
    for scene in scenes:
        speeds = _speeds(scene)
        place = (scene["world"], str(scene["persistence"]), str(scene["correlation"]))
        rows.append((*place, *(f"{speeds[name]:.0f}" for name in RULES)))
    return markdown(("world", "p", "c", *RULES.values()), rows)


def _gains(scenes: list[Result]) -> str:
    """What hybrid is worth beside plain decoding and fixed lengths."""
    rows = []
    for scene in scenes:
        speeds = _speeds(scene)
        ours = speeds["hybrid"]
        others = ("plain", "fixed:16", "best fixed in hindsight", "oracle by model")
        corrected = (speeds[name] / ours - 1 for name in RULES if name.startswith("the same"))
        rows.append(
            (
                scene["world"],
                str(scene["persistence"]),
                str(scene["correlation"]),
                *(f"{ours / speeds[name]:.2f}" for name in others),
                *(f"{gain:+.1%}" for gain in corrected),
                f"{speeds['true cost'] / ours - 1:+.1%}",
            )
        )
    head = ("hybrid x plain", "x fixed:16", "x best fixed", "x oracle")
    gains = ("one row more", "window", "true cost")
    return markdown(("world", "p", "c", *head, *gains), rows)


def _corrections(runs: list[Result]) -> str:
    rows = [
        (
            f"{run['acceptance_world']}, c = {run['correlation']:g}",
            arm["name"],
            f"{arm['tokens_per_second']['median']:.0f} ({arm['tokens_per_second']['low']:.0f}.."
            f"{arm['tokens_per_second']['high']:.0f})",
            f"{arm['over_plain']['median']:.2f}",
            f"{arm['tokens_per_round']:.2f}",
            f"{arm['mean_length']:.2f}",
            f"{1e3 * arm['phases_ms']['policy']:.1f}",
        )
        for run in runs
        for arm in run["arms"]
    ]
    head = ("world", "policy", "tok/s", "x plain", "tokens a round", "rows a round", "policy, us")
    return markdown(head, rows)
