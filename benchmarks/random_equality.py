# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Drafted output against plain decoding in a real shape: random weights, their own router, exact.

    python benchmarks/random_equality.py [--prompts 2] [--first 0] [--tokens 500]

Plain decoding writes a text first. A drafter with random weights then runs in full, and proposes
that text, spoiled where a published survival says so: drafts are accepted and rejected at every
length, and what the target says is its own. Hybrid shows the router one row more than it chose, and
keeps or drops it. Writes results/random_equality.json, or --output.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from arguments import count, need_cuda

from hybridspec.bench.circumstances import observe
from hybridspec.bench.random_pair import Shape
from hybridspec.bench.random_weights import random_drafter, random_target
from hybridspec.bench.script import Script, ScriptedDrafter
from hybridspec.bench.worlds import draw_acceptances
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.graph import CapturedRounds
from hybridspec.engine.loop import Tally, decode, start
from hybridspec.engine.measure import measure
from hybridspec.models.dflash import Drafter
from hybridspec.models.fused import FusedTarget
from hybridspec.models.fused_draft import FusedDrafter
from hybridspec.models.target import Target
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.policy import Fixed, Hybrid, Policy
from hybridspec.policy.routing import RoutingCosts, correction_of

RESULT = Path(__file__).parent / "results" / "random_equality.json"
ARMS: tuple[int | str, ...] = (*range(1, MAX_ROWS + 1), "hybrid")
"""rows of every round, or the policy"""
PRICES = RoutingCosts(seconds_per_row=1e-6, seconds_per_expert=1e-5, layers=40, correlation=0.4)
"""such that extra rows are kept and dropped"""


def written(
    target: FusedTarget | Target,
    drafter: ScriptedDrafter | None,
    arm: int | str,
    prompt: list[int],
    tokens: int,
) -> tuple[list[int], Tally, Policy]:
    """What one policy writes after a prompt."""
    device, tally = target.head.device, Tally()
    request = start(prompt, target=target, drafter=drafter, stop_ids=(), budget=tokens)
    rounds = CapturedRounds(
        target=target,
        drafter=drafter,
        policy=Fixed(arm if isinstance(arm, int) else MAX_ROWS, device=device),
        request=request,
    )
    if arm == "hybrid":
        block = rounds.drafter.drafter.config.block_size
        rounds.policy = Hybrid(
            acceptance=Acceptance.uninformed(block - 1),
            latency=measure(rounds, block),
            correction=correction_of("window", PRICES, device),
            device=device,
        )
    ahead = 1 if device.type == "cuda" else 0
    ids = [token for emission in decode(rounds, tally, ahead=ahead) for token in emission.token_ids]
    return ids, tally, rounds.policy


def spoiled(
    drafter: FusedDrafter | Drafter, prompt: list[int], ids: list[int], vocab_size: int, seed: int
) -> ScriptedDrafter:
    """A drafter that proposes the ids, as far as the agentic world accepts them."""
    device = drafter.head.device
    positions = len(prompt) + len(ids) + MAX_ROWS
    world = draw_acceptances(
        "agentic", positions=positions, drafts=drafter.config.block_size - 1, seed=seed
    )
    script = Script.written(world, vocab_size=vocab_size, device=device, beginning=[*prompt, *ids])
    return ScriptedDrafter(drafter=drafter, script=script)


def compared(
    target: FusedTarget | Target,
    drafter: FusedDrafter | Drafter,
    *,
    prompts: int,
    context: int,
    tokens: int,
    first: int = 0,
) -> Iterator[dict[str, object]]:
    """Each prompt at each length, and whether plain decoding's ids came out."""
    vocab_size, generator = target.config.vocab_size, torch.Generator().manual_seed(7)
    for number in range(first + prompts):
        prompt = torch.randint(vocab_size, (context,), generator=generator).tolist()
        if number < first:
            continue
        plain, *_ = written(target, None, 1, prompt, tokens)
        own = spoiled(drafter, prompt, plain, vocab_size, number)
        for arm in ARMS:
            ids, tally, policy = written(target, own, arm, prompt, tokens)
            same = next(
                (i for i, (a, b) in enumerate(zip(ids, plain, strict=True)) if a != b), None
            )
            one: dict[str, object] = {
                "prompt": number,
                "rows": arm,
                "tokens": len(ids),
                "rounds": tally.rounds,
                "drafts_accepted": tally.drafts_accepted,
                "distinct_ids": len(set(plain)),
                "first_difference": same,
            }
            if isinstance(policy, Hybrid):
                one |= {
                    "extra_rows_kept": int(policy.correction.kept),
                    "extra_rows_dropped": int(policy.correction.dropped),
                }
            yield one


def main() -> int:
    """0 if every text equals plain decoding's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3.6-35b-a3b")
    parser.add_argument("--prompts", type=count, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--context", type=count, default=256)
    parser.add_argument("--tokens", type=count, default=500)
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    need_cuda()
    device, shape, found = torch.device("cuda"), Shape.load(asked.shape), []
    with torch.inference_mode():
        taps = shape.drafter.target_layer_ids
        target = random_target(shape.target, mode="exact", taps=taps, device=device)
        drafter = random_drafter(shape.drafter, target)
        names = ("prompts", "first", "context", "tokens")
        sizes = {name: getattr(asked, name) for name in names}
        for one in compared(target, drafter, **sizes):
            print(one, flush=True)
            found.append(one)
    command = f"python benchmarks/random_equality.py --shape {asked.shape}"
    command += "".join(f" --{name} {value}" for name, value in sizes.items())
    result = {
        "benchmark": "random_equality",
        "shape": asked.shape,
        "weights": "random",
        "mode": "exact",
        **sizes,
        "differences": sum(one["first_difference"] is not None for one in found),
        "texts": found,
        **observe(device, command).to_json(),
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(bool(result["differences"]))


if __name__ == "__main__":
    raise SystemExit(main())
