# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Draw the results in the README from the files in results/, between two marks.

`--check` only compares.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- results: drawn by benchmarks/readme.py -->\n", "<!-- end of results -->\n"
HEAD = ("mode", "policy", "tok/s", "x plain", "tokens a round", "rows a round", "same ids")


def drawn(readme: str) -> str:
    """The README's text with its results drawn anew."""
    if BEGIN not in readme or END not in readme:
        sys.exit("README.md lacks the marks between which the results stand")
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + results() + END + after


def results() -> str:
    """Table, circumstances and equality, as Markdown."""
    decode = [load(f"decode_cpu_{mode}") for mode in ("exact", "fast")]
    rows = [row(arm, run) for run in decode for arm in run["arms"] if arm["mode"] == run["mode"]]
    table = [line(HEAD), line(("---",) * len(HEAD)), *map(line, rows)]
    return "\n".join(
        ["", *table, "", circumstances(decode[0]), "", equality(load("equality")), "", ""]
    )


def load(name: str) -> dict[str, Any]:
    """One result file."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def row(arm: dict[str, Any], run: dict[str, Any]) -> tuple[str, ...]:
    """One policy; its speed-up is over plain of its own mode."""
    over = arm[f"over_plain_{run['mode']}"]
    return (
        run["mode"],
        arm["name"].removesuffix(" fast"),
        f"{arm['tokens_per_second']['median']:.0f}",
        f"{over['median']:.2f} ({over['low']:.2f}..{over['high']:.2f})",
        f"{arm['tokens_per_round']:.2f}",
        f"{arm['mean_length']:.1f}",
        f"{arm['identical']} of {run['prompts']}",
    )


def line(cells: tuple[str, ...]) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def circumstances(run: dict[str, Any]) -> str:
    """What the table was measured with."""
    versions = run["versions"]
    return (
        f"The embedded pair, {run['prompts']} held-out prompts x {run['max_new_tokens']} tokens, "
        f"{run['repeats']} interleaved repeats, median (least..most); {run['device']}; "
        f"torch {versions['torch']}; commit {run['commit']}; {run['date'][:10]}; "
        f"`{run['command']}`. Text that loops counts in no figure "
        f"({run['looping']} of {run['prompts']} prompts end in a loop)."
    )


def equality(run: dict[str, Any]) -> str:
    """What `make equality` found."""
    largest = run["fast_largest_gap"]
    gap = "" if largest is None else f", the largest gap of the two best logits there {largest:.1e}"
    return (
        f"`make equality`: {run['prompts']} prompts x {run['max_new_tokens']} tokens, every length "
        f"and hybrid. Exact: {run['exact_differences']} differences. Fast: "
        f"{run['fast_divergences']} texts part from plain{gap}."
    )


def main() -> int:
    """Write the README, or say whether it is as drawn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    readme = README.read_text(encoding="utf-8")
    if asked.check:
        return int(drawn(readme) != readme)
    README.write_text(drawn(readme), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
