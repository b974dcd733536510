# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Drafted output against plain decoding, at length, on the embedded pair.

Exact mode must not differ at all. Fast mode may differ where the best logits nearly tie; every
first divergence is listed with the gap at its place, which a prefill of the text before it gives.
Writes results/equality.json.
Exit code 1 if exact mode differs, or if a gap in fast mode reaches GAP_LIMIT.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from hybridspec import LLM, SamplingParams
from hybridspec.bench.circumstances import observe
from hybridspec.core.options import Mode
from hybridspec.models.embedded import heldout_prompts
from hybridspec.models.state import TargetState
from hybridspec.models.target import PREFILL_ROWS

GAP_LIMIT = 1e-3
"""fp32: design, losslessness"""
RESULT = Path(__file__).parent / "results" / "equality.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token in which a drafted text parts from plain decoding."""

    prompt: int
    place: int
    gap: float
    """distance of the two best logits there, after a prefill of what plain decoding wrote"""


def compare(llm: LLM, prompts: list[str], params: SamplingParams, mode: Mode) -> dict[str, object]:
    """Divergences of hybrid and of every fixed length from plain decoding in one mode."""
    plain_llm = llm.using(policy="plain", mode=mode)
    plain = [plain_llm.generate(p, params).token_ids for p in prompts]
    arms = {f"fixed:{n}": llm.using(policy="fixed", length=n, mode=mode) for n in block(llm)}
    arms["hybrid"] = llm.using(policy="hybrid", mode=mode)
    found: dict[str, object] = {}
    for name, arm in arms.items():
        parted: list[Divergence] = []
        for number, (prompt, wanted) in enumerate(zip(prompts, plain, strict=True)):
            ids = arm.generate(prompt, params).token_ids
            if ids != wanted:
                place = first_difference(ids, wanted)
                gap = gap_at(llm, prompt, wanted[:place])
                parted.append(Divergence(prompt=number, place=place, gap=gap))
        found[name] = [asdict(d) for d in parted]
        print(f"{mode} {name}: {len(parted)} of {len(prompts)} texts differ", flush=True)
    return found


def block(llm: LLM) -> range:
    """Every length that the drafter allows."""
    return range(1, llm.block_size + 1)


@torch.inference_mode()
def gap_at(llm: LLM, prompt: str, written: tuple[int, ...]) -> float:
    """Distance of the two best logits after a prompt and what was written to it."""
    target = llm.pair.target
    ids = torch.tensor([*llm.pair.tokenizer.encode(prompt), *written], device=llm.device)
    state = TargetState.empty(target.config, len(ids), llm.device)
    gaps = [target.read_prompt(ids[i : i + PREFILL_ROWS], state).gaps for i in starts(len(ids))]
    return float(gaps[-1][-1])


def starts(length: int) -> range:
    """Where the pieces of a prompt begin."""
    return range(0, length, PREFILL_ROWS)


def first_difference(ids: tuple[int, ...], wanted: tuple[int, ...]) -> int:
    """Where two different texts part; the end of the shorter if it begins the longer."""
    pairs = enumerate(zip(ids, wanted, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ids), len(wanted)))


def main() -> int:
    """Compare both modes and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    llm = LLM(policy="hybrid", device=asked.device)
    prompts = heldout_prompts("test")[: asked.prompts]
    params = SamplingParams(max_new_tokens=asked.tokens)
    exact, fast = (compare(llm, prompts, params, mode) for mode in ("exact", "fast"))
    differing = sum(len(arm) for arm in exact.values())
    gaps = [d["gap"] for arm in fast.values() for d in arm]
    result = {
        "benchmark": "equality",
        "prompts": len(prompts),
        "max_new_tokens": asked.tokens,
        "exact_differences": differing,
        "fast_divergences": len(gaps),
        "fast_largest_gap": max(gaps, default=None),
        "exact": exact,
        "fast": fast,
        **observe(llm.device, " ".join(["python", *sys.argv])).to_json(),
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"exact: {differing} differences; fast: {len(gaps)}, largest gap {max(gaps, default=0)}")
    return int(differing > 0 or max(gaps, default=0) >= GAP_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
