# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Continue prompt files greedily on the CPU in fp32 and simulate rounds over what the target wrote.

An independent check of the numbers that train_drafter.py reports: other device, other precision,
real prompts.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from continuations import ends_of
from drafter_model import load_drafter, saved_shape
from fit_acceptance import calibration_error
from graphs import circumstances
from rounds import measure, summary_of
from safetensors.torch import load_file, save_file
from statements import last_statement, parses
from target_decode import Decoder
from target_forward import Target, delta_rule_plain, load_target
from target_model import Shape
from tokenizers import Tokenizer
from torch import Tensor


def continue_prompts(target: Target, prompts: list[list[int]], tokens: int, file: Path) -> None:
    """Write {tokens, begins, ends} of every prompt's greedy continuation."""
    longest = max(map(len, prompts)) + tokens
    text = torch.zeros(len(prompts), longest, dtype=torch.int16)
    begins = torch.tensor([len(p) for p in prompts])
    ends = torch.zeros_like(begins)
    for row, prompt in enumerate(prompts):
        decoder = Decoder(target, 1, len(prompt) + tokens)
        decoder.prefill(torch.tensor([prompt]))
        for _ in range(tokens - 1):
            decoder.step()
        text[row, : len(prompt) + tokens] = decoder.tokens[0].to(torch.int16)
        ends[row] = ends_of(decoder.tokens, len(prompt))[0]
    save_file({"tokens": text, "begins": begins, "ends": ends}, file)


def texts(written: dict[str, Tensor], tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Prompt and continuation of every row, as far as it counts."""
    for ids, begin, end in zip(written["tokens"], written["begins"], written["ends"], strict=True):
        yield tokenizer.decode(ids[:begin].tolist()), tokenizer.decode(ids[begin:end].tolist())


def own_last_statement(prompt: str, continuation: str) -> str | None:
    """The last full statement that the continuation ends; None if it ends none."""
    last = last_statement(prompt + continuation)
    return None if last == last_statement(prompt) else last


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="a .jsonl file")
    parser.add_argument("--split", help="only prompts of this split")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--work", type=Path, required=True, help="folder for the continuations")
    parser.add_argument("--report", type=Path, required=True)
    args = parser.parse_args()
    shape, cpu = replace(Shape(), dtype=torch.float32), torch.device("cpu")
    target = load_target(args.target, shape, cpu, delta_rule_plain)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    rows = [json.loads(line) for line in args.prompts.read_text("utf-8").splitlines()]
    rows = [row for row in rows if args.split is None or row["split"] == args.split]
    prompts = [tokenizer.encode(row["prompt"]).ids for row in rows]
    file = args.work / f"{args.prompts.stem}-{args.split or 'all'}.safetensors"
    if not file.exists():  # the slow half: kept for a second run
        continue_prompts(target, prompts, args.tokens, file)
    written = load_file(file)
    kept = int((written["ends"] - written["begins"]).sum())
    drafter_shape = saved_shape(args.drafter, dtype=torch.float32)
    result = measure(target, load_drafter(args.drafter, cpu), drafter_shape, file, len(prompts), 1)
    table = json.loads((args.drafter / "acceptance.json").read_text())
    seen = result.observations
    odds = table["slope"] * seen["log_odds"].double()
    odds += torch.tensor(table["intercepts"], dtype=torch.double)[seen["position"] - 1]
    found = [own_last_statement(*text) for text in texts(written, tokenizer)]
    statements = [statement for statement in found if statement is not None]
    report = circumstances() | {
        "prompts": len(prompts),
        "tokens_kept": kept,
        "with_a_full_statement": len(statements),
        "last_full_statement_parses": sum(map(parses, statements)),
        "expected_calibration_error": round(calibration_error(odds.sigmoid(), seen["accepted"]), 6),
        "result": summary_of(result),
    }
    args.report.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    first, end = int(written["begins"][0]), int(written["ends"][0])
    print(rows[0]["prompt"] + "|" + tokenizer.decode(written["tokens"][0, first:end].tolist()))


if __name__ == "__main__":
    main()
