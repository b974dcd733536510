# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Hybrid beside the fixed length that turns out best, on held-out text in four classes.

    python benchmarks/hindsight.py [--device cuda] [--texts FILE]

The embedded pair with real acceptance. Hybrid should come within 2 % of the best fixed length of
each class, which no one knows before. The texts are those of benchmarks/heldout_text.py; --write
keeps them in a file, for a machine where the packages they are from are not installed. Writes
results/hindsight_DEVICE.json, or --output. Exit code 1 if a class stays below LIMIT.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from arguments import count
from heldout_text import CLASSES, prompts

from hybridspec import LLM
from hybridspec.bench.decode import run_decode
from hybridspec.bench.options import DecodeOptions
from hybridspec.bench.report import DecodeReport

LENGTHS = (2, 4, 6, 8, 12, 16)
LIMIT = 0.98
"""tokens a second over those of the best fixed length"""
RESULTS = Path(__file__).parent / "results"


def texts(count: int) -> dict[str, list[str]]:
    """`count` prompts of each class."""
    found = prompts(LLM(device="cpu").pair.tokenizer, count)
    return {name: [prompt for own, prompt in found if own == name] for name in CLASSES}


def measured(name: str, own: list[str], asked: argparse.Namespace) -> DecodeReport:
    """One class through every policy."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in own))
        options = DecodeOptions(
            prompts=file,
            policies=",".join(["plain", *(f"fixed:{n}" for n in LENGTHS), "hybrid"]),
            device=asked.device,
            max_new_tokens=asked.max_new_tokens,
            repeats=asked.repeats,
        )
        command = (
            f"python benchmarks/hindsight.py --device {asked.device} --texts texts.json "
            f"--prompts {asked.prompts} --max-new-tokens {asked.max_new_tokens} "
            f"--repeats {asked.repeats}"
        )
        return run_decode(options, command=command)


def over_best(report: DecodeReport) -> tuple[float, str]:
    """Hybrid's median speed over that of the best fixed length, and which that is."""
    speeds = {
        arm.name: arm.tokens_per_second.median for arm in report.arms if arm.mode == report.mode
    }
    best = max((name for name in speeds if name.startswith("fixed")), key=speeds.__getitem__)
    return speeds["hybrid"] / speeds[best], best


def main() -> int:
    """Measure each class and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--prompts", type=count, default=10, help="of each class")
    parser.add_argument("--max-new-tokens", type=count, default=160)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--texts", type=Path, help="file that --write has written")
    parser.add_argument("--write", type=Path, help="write the texts there and measure nothing")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    chosen = json.loads(asked.texts.read_text()) if asked.texts else texts(asked.prompts)
    if asked.write:
        asked.write.write_text(json.dumps(chosen))
        return 0
    torch.set_num_threads(1)
    runs, ratios = dict[str, object](), list[float]()
    for name in CLASSES:
        report = measured(name, chosen[name][: asked.prompts], asked)
        ratio, best = over_best(report)
        print(f"{name}: hybrid {ratio:.3f} x {best}\n{report.table()}", flush=True)
        ratios.append(ratio)
        runs[name] = {"best": best, "over_best": ratio, **report.to_json()}
    output = asked.output or RESULTS / f"hindsight_{asked.device}.json"
    output.write_text(json.dumps({"benchmark": "hindsight", "classes": runs}) + "\n")
    return int(min(ratios) < LIMIT)


if __name__ == "__main__":
    sys.exit(main())
