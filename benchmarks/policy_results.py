# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tables of docs/policy.md: acceptance, experts and rules over held-out text, then the worlds."""

from typing import Any

import pair_results
import world_results
from table import markdown

Result = dict[str, Any]
PLACES = (1, 2, 3, 4, 8, 15)
"""drafts that are shown"""
ROWS = (1, 2, 4, 8, 16)


def tables(
    facts: Result,
    replay: Result,
    worlds: Result,
    *,
    runs: list[Result],
    pair: list[Result],
    time: Result,
) -> str:
    """All that was measured, as Markdown. pair: of hindsight.py, time: of policy_time.py."""
    parts = [
        f"**Acceptance** on held-out text; every one of {facts['positions']} positions is an "
        f"anchor once ({facts['recorded_positions']} were recorded, those in loops are left out). "
        "Survival: share of blocks whose first j drafts are right. ECE: expected calibration error "
        "of the shipped table and of the drafter's own confidence, 20 bins of equal count. AUC: "
        "the chance that the log-odds of a right draft j are above those of a wrong one, where the "
        "drafts before were right.",
        _survival(facts["acceptance"]),
        _auc(facts["acceptance"]),
        "**Distinct experts** a layer of the first n rows of a block (32 experts, 4 a row):",
        _experts(facts["experts"]),
        "**One row more**: experts that row n adds over all layers, their spread, and their "
        "correlation with those that it adds at the first router (of all layers; of the others).",
        _margin(facts["experts"]),
        f"One new expert beyond the mean at the first router goes with "
        f"{facts['experts']['slope_to_others']:.2f} in each other layer (least squares within each "
        "number of rows).",
        "**Policies over the trace**, rounds as the engine would have had them. Seconds are by a "
        "cost model, not by a clock: bytes of the 35B-A3B shape at 4.0 TB/s, experts by this "
        "pair's own unions. Rules choose by its means; tok/s are by the experts of each block. "
        "Gap: to an oracle that knows every accepted count and all costs.",
        _policies(replay["policies"]),
        "The same tok/s by class:",
        _by_class(replay["policies"]),
        _circumstances(facts),
        pair_results.tables(pair, time),
        world_results.tables(worlds, runs),
    ]
    return "\n" + "\n\n".join(parts) + "\n\n"


def _survival(classes: Result) -> str:
    head = (
        "class",
        "positions",
        *(f"survival {j}" for j in PLACES),
        "ECE",
        "ECE, own confidence",
        "predicted",
        "observed",
    )
    rows = [
        (
            name,
            str(own["positions"]),
            *(f"{own['survival'][j - 1]:.3f}" for j in PLACES),
            f"{own['calibration_error']:.4f}",
            f"{own['calibration_error_own']:.4f}",
            f"{own['mean_predicted']:.3f}",
            f"{own['mean_observed']:.3f}",
        )
        for name, own in classes.items()
    ]
    return markdown(head, rows)


def _auc(classes: Result) -> str:
    head = ("class", *(f"AUC of draft {j}" for j in PLACES))
    rows = [(name, *(_number(own["auc"][j - 1]) for j in PLACES)) for name, own in classes.items()]
    return markdown(head, rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _experts(experts: Result) -> str:
    head = ("layer", *(f"n = {n}" for n in ROWS))
    rows = [
        (str(layer), *(f"{own[n - 1]:.1f}" for n in ROWS))
        for layer, own in enumerate(experts["distinct"])
    ]
    return markdown(head, rows)


def _margin(experts: Result) -> str:
    head = ("n", "experts", "sd", "sd / mean", "correlation, all", "correlation, others")
    rows = [
        (
            str(n),
            f"{(mean := experts['new_mean'][n - 2]):.1f}",
            f"{(spread := experts['new_sd'][n - 2]):.1f}",
            f"{spread / mean:.2f}",
            f"{experts['correlation_with_total'][n - 2]:.2f}",
            f"{experts['correlation_with_others'][n - 2]:.2f}",
        )
        for n in (2, 3, 4, 6, 8, 12, 16)
    ]
    return markdown(head, rows)


def _policies(policies: Result) -> str:
    head = ("policy", "tokens a round", "rows a round", "tok/s", "gap")
    rows = [
        (
            own["name"],
            f"{own['tokens_per_round']:.2f}",
            f"{own['rows_per_round']:.1f}",
            f"{own['model']['tokens_per_second']:.0f}",
            f"{own['model']['gap_to_oracle']:.1%}",
        )
        for own in policies["all"]
    ]
    return markdown(head, rows)


def _by_class(policies: Result) -> str:
    """In hindsight each class has a winner of its own, so that only its rule is named."""
    head = ("policy", *policies)
    columns = [
        [f"{own['model']['tokens_per_second']:.0f}" for own in runs] for runs in policies.values()
    ]
    names = [own["name"].split(":")[0] for own in policies["all"]]
    rows = [
        row
        for row, own in zip(zip(names, *columns, strict=True), policies["all"], strict=True)
        if not own["name"].startswith("fixed:")
    ]
    return markdown(head, rows)


def _circumstances(facts: Result) -> str:
    versions = facts["versions"]
    draft, read, commit = (f"{1e3 * x:.1f}" for x in facts["seconds_per_position"])
    return (
        f"{facts['device']}, {facts['trace_key']['mode']} mode (draft {draft} ms, read of 16 rows "
        f"{read}, commit {commit}); {facts['texts']} texts; torch {versions['torch']}; commit "
        f"{facts['commit']}; {facts['date'][:10]}; `{facts['command']}`."
    )
