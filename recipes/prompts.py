# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Prompts from held-out packages: 80 for measuring (20 of them for fitting) and 8 that read well.

Every prompt starts at the beginning of a held-out file and ends at the end of a line. Fit and test
prompts come from the two halves of the held-out files that continuations.py keeps apart.
"""

import argparse
import hashlib
import json
import re
from pathlib import Path

from continuations import half_of
from corpus import read_text
from tokenizers import Tokenizer

FIT, TEST = 20, 60
PER_PACKAGE = 8
"""At most so many prompts from one package in each split, so that no package dominates."""
DEMO_TOKENS = 80
"""Demo prompts end with the line that reaches so many tokens."""


def fraction(text: str) -> float:
    """A fixed number in [0, 1) for a text."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32


def heldout_prompt(text: str, path: str, tokenizer: Tokenizer) -> str | None:
    """The file's beginning up to a line's end, 100 to 400 tokens, fixed by the path."""
    wanted = 100 + fraction(path + "length") * 260
    begin = 0
    lines = text.splitlines(keepends=True)
    for end in range(1, len(lines)):
        prompt = "".join(lines[begin:end])
        count = len(tokenizer.encode(prompt).ids)
        if count >= wanted:
            return prompt if count <= 400 and end < len(lines) - 15 else None
    return None


def heldout(rows: list[dict], site: Path, tokenizer: Tokenizer) -> list[dict[str, str]]:
    """FIT prompts, then TEST prompts, spread over the packages."""
    chosen: dict[str, list[dict[str, str]]] = {"fit": [], "test": []}
    taken: dict[tuple[str, str], int] = {}
    wanted = {"fit": FIT, "test": TEST}
    for row in sorted(rows, key=lambda r: fraction(r["path"] + "order")):
        split = ("fit", "test")[half_of(row["path"])]
        package = (split, row["package"])
        if len(chosen[split]) == wanted[split] or taken.get(package, 0) == PER_PACKAGE:
            continue
        text = read_text(site / row["path"])
        prompt = text and heldout_prompt(text, row["path"], tokenizer)
        if prompt:
            taken[package] = taken.get(package, 0) + 1
            source = f"{row['package']}/{row['path']}"
            chosen[split].append({"prompt": prompt, "source": source, "split": split})
    return chosen["fit"] + chosen["test"]


def demo_prompt(text: str, path: str, header: str, tokenizer: Tokenizer) -> str:
    """The file's imports and the function or class that begins with header, up to DEMO_TOKENS."""
    lines = text.splitlines(keepends=True)
    imports = [s for s in lines if re.match(r"(import|from) [\w.]+( import [^(]*)?$", s)]
    start = text.index("\n" + header) + 1
    match = re.compile(r":[ \t]*\n").search(text, start)
    assert match is not None
    end, prompt = match.end(), ""
    while (count := len(tokenizer.encode(prompt).ids)) < DEMO_TOKENS:
        prompt = "".join(imports[:6]) + "\n\n" + text[start:end]
        end = text.index("\n", end) + 1
    if count > 200:
        raise ValueError(f"{path}: demo prompt of {count} tokens; choose another header")
    return prompt.lstrip("\n")


def write(rows: list[dict[str, str]], file: Path) -> None:
    """One JSON object a line."""
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--site", type=Path, required=True, help="site-packages folder with held-out packages"
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with corpus.py's index.json"
    )
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument(
        "--demo", type=Path, required=True, help="JSON list of [package, path, header]"
    )
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer / "tokenizer.json"))
    rows = json.loads((args.data / "index.json").read_text())
    args.out.mkdir(parents=True, exist_ok=True)
    write(heldout(rows, args.site, tokenizer), args.out / "heldout.jsonl")
    demo = [
        {
            "prompt": demo_prompt(read_text(args.site / path) or "", path, header, tokenizer),
            "source": f"{package}/{path}",
        }
        for package, path, header in json.loads(args.demo.read_text())
    ]
    write(demo, args.out / "demo.jsonl")


if __name__ == "__main__":
    main()
