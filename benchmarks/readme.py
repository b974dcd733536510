# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Draw the results in README and docs/ from results/, between marks.

`--check` only compares.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gdn_results
import policy_results
import prompt_results
import round_results
from table import markdown

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
README, CORRECTNESS, GDN = HERE.parent / "README.md", DOCS / "correctness.md", DOCS / "gdn.md"
MEASURED, POLICY = DOCS / "measured.md", DOCS / "policy.md"
BEGIN, END = "<!-- results: drawn by benchmarks/readme.py -->\n", "<!-- end of results -->\n"
SHOWN = ("plain", "plain fast", "fixed:8", "fixed:16", "hybrid")
"""policies of the embedded pair in the README"""
REPLAYS = ("policy_facts", "policy_replay", "world_replay")
CORRECTED = ("decode_random", "decode_random_correlated", "decode_random_maths")
"""decoded on a GPU with and without the first router's correction"""
PAIR = ("hindsight_cpu", "hindsight_cuda")
HEAD = ("mode", "policy", "tok/s", "x plain", "tokens a round", "rows a round", "same ids")


def drawn(path: Path, results: str) -> str:
    """The text of a file with its results drawn anew."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        sys.exit(f"{path.name} lacks the marks between which the results stand")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + results + END + after


def results() -> str:
    """Tables, circumstances and equality, as Markdown."""
    decode, same = load("decode_cpu_exact"), load("equality")
    parts = [*gpu(load("decode_random")), cpu([decode], SHOWN)]
    notes = f"{circumstances(decode)} {equality(same)} (Commit {same['commit']}.)"
    return "\n" + "\n\n".join([*parts, notes]) + "\n\n"


def cpu(runs: list[dict[str, Any]], names: tuple[str, ...] = ()) -> str:
    """A table: the policies of each run in its own mode, or those that are named."""
    arms = [(arm, run) for run in runs for arm in run["arms"]]
    shown = [
        (arm, run)
        for arm, run in arms
        if (arm["name"] in names if names else arm["mode"] == run["mode"])
    ]
    return markdown(HEAD, [row(*own) for own in shown])


def measured() -> str:
    """All of docs/measured.md, as Markdown."""
    runs = [load(f"decode_cpu_{mode}") for mode in ("exact", "fast")]
    parts = ["**The embedded pair on a CPU**:", cpu(runs), *map(circumstances, runs)]
    tables = round_results.tables(load("round_time"), load("decode_random"))
    prompts = prompt_results.tables(*map(load, ("prefill_time", "profile_time", "loading_time")))
    return tables + "\n\n".join([prompts, *parts]) + "\n\n"


def gpu(run: dict[str, Any]) -> tuple[str, str]:
    """What decoding with random weights found: a table, and what it was measured with."""
    head = ("policy", "tok/s", "x plain", "tokens a round", "rows a round", "ms a round")
    rows = [
        (
            arm["name"],
            f"{arm['tokens_per_second']['median']:.0f}",
            f"{arm['over_plain']['median']:.2f}",
            f"{arm['tokens_per_round']:.2f}",
            f"{arm['mean_length']:.1f}",
            f"{arm['ms_per_round']['median']:.2f}",
        )
        for arm in run["arms"]
        if not arm["name"].startswith("hybrid:")
    ]
    words = (
        f"{run['device']}, shape {run['shape']} with **random weights**, {run['mode']} mode, "
        f"{run['max_new_tokens']} tokens after {run['context']}; acceptance is drawn from published"
        f" survivals (`{run['acceptance_world']}`), experts are {round_results.choice(run)}; "
        f"commit {run['commit']}; {run['date'][:10]}; `{run['command']}`. "
        "More in [docs/measured.md](docs/measured.md)."
    )
    return markdown(head, rows), words


def load(name: str) -> dict[str, Any]:
    """One result file."""
    return json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))


def row(arm: dict[str, Any], run: dict[str, Any]) -> tuple[str, ...]:
    """One policy; its speed-up is over plain of the run's mode."""
    over = arm[f"over_plain_{run['mode']}"]
    return (
        arm["mode"],
        arm["name"].removesuffix(" fast"),
        f"{arm['tokens_per_second']['median']:.0f}",
        f"{over['median']:.2f} ({over['low']:.2f}..{over['high']:.2f})",
        f"{arm['tokens_per_round']:.2f}",
        f"{arm['mean_length']:.1f}",
        f"{arm['identical']} of {run['prompts']}",
    )


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


def near_ties(run: dict[str, Any]) -> str:
    """The same with its circumstances, and how many places nearly tied, as Markdown."""
    versions = run["versions"]
    parts = [
        f"{equality(run)} {run['device']}; torch {versions['torch']}; commit {run['commit']}; "
        f"{run['date'][:10]}; `{run['command']}`."
    ]
    if "fast_gaps" in run:  # a run of an older script counted none
        named = {
            f"tokens of plain decoding, {mode}": run[mode]["plain_gaps"]
            for mode in ("exact", "fast")
        } | {"texts that part, fast": run["fast_gaps"]}
        rows = [(name, *map(str, counts.values())) for name, counts in named.items()]
        head = ("gap of the two best logits", *run["fast_gaps"])
        parts.append(markdown(head, rows))
    return "\n" + "\n\n".join(parts) + "\n\n"


def main() -> int:
    """Write all files, or say whether they are as drawn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    verify, rounds = load("gdn_verify"), load("round_time")
    documents = {
        README: results(),
        CORRECTNESS: near_ties(load("equality")),
        GDN: gdn_results.tables(verify),
        MEASURED: measured(),
        POLICY: policy_results.tables(
            *map(load, REPLAYS),
            runs=list(map(load, CORRECTED)),
            pair=list(map(load, PAIR)),
            time=load("policy_time"),
        ),
    }
    texts = {path: drawn(path, part) for path, part in documents.items()}
    texts[DOCS / "gdn_verify.svg"] = gdn_results.figure(verify)
    texts[DOCS / "round_time.svg"] = round_results.figure(rounds)
    if asked.check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in texts.items()))
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
