# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Drafted output against plain decoding, at length, on the embedded pair.

Exact mode must not differ at all. Fast mode may differ where the best logits nearly tie: the first
divergence of each text is listed with the gap that plain decoding of the same mode saw there, and
counted by powers of ten, beside the gaps at all places that plain decoding wrote.
Writes results/equality.json.
Exit code 1 if exact mode differs, or if a gap in fast mode reaches GAP_LIMIT.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from arguments import count, typed
from torch import Tensor

from hybridspec import LLM, SamplingParams
from hybridspec.bench.circumstances import observe
from hybridspec.core.options import Mode
from hybridspec.core.records import Reading, Routed
from hybridspec.models.embedded import heldout_prompts
from hybridspec.models.state import TargetState
from hybridspec.models.target import Target

GAP_LIMIT = 1e-3
"""fp32: docs/correctness.md"""
BINS = {"<1e-7": 1e-7, "<1e-6": 1e-6, "<1e-5": 1e-5, "<1e-4": 1e-4, "<1e-3": 1e-3}
"""upper ends; each bin begins where the one before ends"""
ABOVE = ">=1e-3"
RESULT = Path(__file__).parent / "results" / "equality.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(Target):
    """A target that writes down the gap of its two best logits at each token it decides."""

    gaps: list[float]
    """of one text; a new prompt begins it anew"""

    def read_prompt(self, tokens: Tensor, state: TargetState) -> Reading:
        """As Target; of a prompt in pieces the last decides."""
        reading = Target.read_prompt(self, tokens, state)
        self.gaps[:] = reading.gaps[-1:].tolist()
        return reading

    def read_on(self, routed: Routed, rows: Tensor, state: TargetState) -> Reading:
        """As Target."""
        reading = Target.read_on(self, routed, rows, state)
        self.gaps.extend(reading.gaps[: int(rows)].tolist())
        return reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What plain decoding wrote after one prompt."""

    ids: tuple[int, ...]
    gaps: tuple[float, ...]
    """distance of the two best logits at each token"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token in which a drafted text parts from plain decoding."""

    prompt: int
    place: int
    gap: float
    """plain decoding's, there"""


def compare(llm: LLM, prompts: list[str], params: SamplingParams, mode: Mode) -> dict[str, Any]:
    """One mode: gaps of plain decoding, and where hybrid and every fixed length part from it."""
    plain = write_plain(llm.using(policy="plain", mode=mode), prompts, params)
    arms = {f"fixed:{n}": llm.using(policy="fixed", length=n, mode=mode) for n in block(llm)}
    arms["hybrid"] = llm.using(policy="hybrid", mode=mode)
    found: dict[str, Any] = {}
    for arm_name, arm in arms.items():
        texts = [arm.generate(prompt, params).token_ids for prompt in prompts]
        parted = divergences(texts, plain)
        found[arm_name] = {
            "texts": len(texts),
            "divergences": [asdict(d) for d in parted],
            "gaps": {name: n for name, n in histogram(d.gap for d in parted).items() if n},
        }
        print(f"{mode} {arm_name}: {len(parted)} of {len(texts)} texts differ", flush=True)
    return {"plain_gaps": histogram(gap for text in plain for gap in text.gaps), "arms": found}


def write_plain(llm: LLM, prompts: list[str], params: SamplingParams) -> list[Written]:
    """Plain decoding through the front door, its gaps written down on the way."""
    target, gaps = llm.pair.target, list[float]()
    parts = {field.name: getattr(target, field.name) for field in fields(target)}
    llm.opening.pair = replace(llm.pair, target=Watched(**parts, gaps=gaps))
    texts: list[Written] = []
    for prompt in prompts:
        ids = llm.generate(prompt, params).token_ids
        assert len(ids) == len(gaps), "one gap a token"
        texts.append(Written(ids=ids, gaps=tuple(gaps)))
    return texts


def divergences(texts: list[tuple[int, ...]], plain: list[Written]) -> list[Divergence]:
    """Of each text that differs, the first place, with the gap there."""
    return [
        Divergence(prompt=number, place=place, gap=wanted.gaps[place])
        for number, (ids, wanted) in enumerate(zip(texts, plain, strict=True))
        if ids != wanted.ids
        for place in [first_difference(ids, wanted.ids)]
    ]


def first_difference(ids: tuple[int, ...], wanted: tuple[int, ...]) -> int:
    """Where two different texts part."""
    pairs = enumerate(zip(ids, wanted, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), None)
    assert place is not None, "a text that only ends elsewhere is no near tie but a fault"
    return place


def histogram(gaps: Iterable[float]) -> dict[str, int]:
    """How many gaps lie in each bin; all bins, in order."""
    counts = dict.fromkeys((*BINS, ABOVE), 0)
    for gap in gaps:
        counts[next((name for name, end in BINS.items() if gap < end), ABOVE)] += 1
    return counts


def block(llm: LLM) -> range:
    """Every length that the drafter allows."""
    return range(1, llm.block_size + 1)


def gaps_of(arms: dict[str, Any]) -> list[float]:
    """The gap of every divergence of a mode."""
    return [d["gap"] for arm in arms.values() for d in arm["divergences"]]


def main() -> int:
    """Compare both modes and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=count, default=60)
    parser.add_argument("--tokens", type=count, default=200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    llm = LLM(policy="hybrid", device=asked.device)
    prompts = heldout_prompts("test")[: asked.prompts]
    params = SamplingParams(max_new_tokens=asked.tokens)
    exact, fast = (compare(llm, prompts, params, mode) for mode in ("exact", "fast"))
    differing, gaps = len(gaps_of(exact["arms"])), gaps_of(fast["arms"])
    result = {
        "benchmark": "equality",
        "prompts": len(prompts),
        "max_new_tokens": asked.tokens,
        "exact_differences": differing,
        "fast_divergences": len(gaps),
        "fast_largest_gap": max(gaps, default=None),
        "fast_gaps": histogram(gaps),
        "exact": exact,
        "fast": fast,
        **observe(llm.device, typed()).to_json(),
    }
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"exact: {differing} differences; fast: {len(gaps)}, largest gap {max(gaps, default=0)}")
    return int(differing > 0 or max(gaps, default=0) >= GAP_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
