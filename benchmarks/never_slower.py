# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Hybrid where drafting cannot pay: prose of random words, and a drafter of shuffled weights.

After warm-up it should take at most 2 % more time than plain decoding of its mode (design, promise
4). The first repeat holds the warm-up; the median leaves it out. Writes
results/never_slower_DEVICE.json, or --output. Exit code 1 if a median is below LIMIT.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from arguments import count, typed
from safetensors.torch import load_file, save_file

from hybridspec.bench.decode import run_decode
from hybridspec.bench.options import DecodeOptions
from hybridspec.core.options import Mode
from hybridspec.models import embedded

MODES: tuple[Mode, ...] = ("exact", "fast")
CASES = ("random words", "shuffled drafter")
LIMIT = 0.98
"""tokens a second over those of plain decoding"""
RESULTS = Path(__file__).parent / "results"
WORDS = (
    "apple river seven quietly stone above window carry green promise under letter slowly market "
    "thirty bright follow garden silver often machine winter answer between yellow bread perhaps "
    "mountain island early question summer paper against forest voice simple candle heavy"
)


def prose(count: int, words: int, seed: int) -> Iterator[str]:
    """Sentences of random words."""
    dice, known = random.Random(seed), WORDS.split()
    for _ in range(count):
        text = [dice.choice(known) + ("." if dice.random() < 0.1 else "") for _ in range(words)]
        yield " ".join(text)


def write_prompts(file: Path, prompts: Iterator[str]) -> Path:
    """One {"prompt": ...} a line."""
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return file


def write_shuffled_drafter(folder: Path, seed: int) -> Path:
    """The embedded drafter with the elements of every tensor in random order."""
    folder.mkdir()
    gen = torch.Generator().manual_seed(seed)
    tensors = load_file(embedded.DRAFTER / "model.safetensors")
    shuffled = {
        name: t.flatten()[torch.randperm(t.numel(), generator=gen)].view(t.shape)
        for name, t in tensors.items()
    }
    save_file(shuffled, folder / "model.safetensors")
    shutil.copy(embedded.DRAFTER / "config.json", folder)
    return folder


def main() -> int:
    """Measure both cases in both modes and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=count, default=6)
    parser.add_argument("--tokens", type=count, default=192)
    parser.add_argument("--repeats", type=count, default=21, help="one scatters by 4 %%")
    parser.add_argument("--case", choices=CASES, help="one of the cases alone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    found: list[dict[str, object]] = []
    medians: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        words = write_prompts(Path(folder) / "words.jsonl", prose(asked.prompts, 40, seed=0))
        shuffled = write_shuffled_drafter(Path(folder) / "shuffled", seed=0)
        cases = dict(zip(CASES, ((embedded.DRAFTER, words), (shuffled, None)), strict=True))
        for name, (drafter, prompts) in cases.items():
            if asked.case not in (None, name):
                continue
            for mode in MODES:
                options = DecodeOptions(
                    model=str(embedded.TARGET),
                    draft_model=str(drafter),
                    prompts=prompts,
                    policies="hybrid",
                    mode=mode,
                    device=asked.device,
                    max_new_tokens=asked.tokens,
                    repeats=asked.repeats,
                )
                report = run_decode(options, command=typed())
                print(f"{name}, {mode}\n{report.table()}", flush=True)
                found.append({"case": name} | report.to_json())
                arm = report.arms[-1]
                over = arm.over_plain_exact if mode == "exact" else arm.over_plain_fast
                medians.append(over.median)
    output = asked.output or RESULTS / f"never_slower_{asked.device}.json"
    output.write_text(json.dumps({"benchmark": "never slower", "runs": found}) + "\n")
    return int(min(medians) < LIMIT)


if __name__ == "__main__":
    sys.exit(main())
