# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""T(n, c) and a plain step at long contexts on a GPU; random weights in a real shape.

    python benchmarks/profile_time.py [--shape qwen3.6-35b-a3b] [--contexts 1024,16384,65536,131072]

A short prompt is read; then keys and values are normal numbers and the lengths are moved to each
context in turn: the time of attention does not depend on values. Blocks of random tokens price
rows and experts, without a draft. Memory is the peak beyond weights, with states for the longest
context. Writes results/profile_time.json, or --output.
"""

import argparse
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from arguments import count, need_cuda

from hybridspec.bench.circumstances import observe
from hybridspec.bench.options import Arm
from hybridspec.bench.random_pair import RandomPair, Scene, Shape, check_fit
from hybridspec.core.options import MAX_ROWS
from hybridspec.core.records import Block
from hybridspec.engine.measure import measure, measure_draft, measure_routing, spend_commits
from hybridspec.engine.memory import held_bytes
from hybridspec.policy.latency import Latency

RESULT = Path(__file__).parent / "results" / "profile_time.json"
PROMPT = 64
"""tokens that are really read"""
ANCHORS = 12
"""blocks of random tokens that price rows and experts"""


@dataclass(frozen=True, slots=True)
class AnyDrafter:
    """Another block after each anchor; the script's drafter would write the script."""

    blocks: torch.Tensor
    """[ANCHORS, BLOCK] int64"""

    @classmethod
    def of(cls, shape: Shape, device: torch.device) -> "AnyDrafter":
        """Random tokens."""
        size = (ANCHORS, shape.drafter.block_size)
        return cls(torch.randint(shape.target.vocab_size, size, device=device))

    def propose(self, anchor: torch.Tensor, state: object) -> Block:
        """The block of an anchor."""
        place = (anchor % len(self.blocks)).view(1)
        tokens = self.blocks.index_select(0, place)[0]  # an index of a scalar would ask the host
        return Block(tokens=tokens, log_odds=torch.zeros(len(tokens) - 1, device=tokens.device))


@torch.inference_mode()
def profiled(pair: RandomPair, contexts: list[int], repeats: int) -> Latency:
    """The table of all contexts, in one request."""
    shape, request = pair.shape, pair.request
    request.target.keys.normal_()
    request.target.values.normal_()
    request.draft.keys.normal_()
    request.draft.values.normal_()
    block = shape.drafter.block_size
    rounds = pair.rounds(Arm(policy="fixed", mode=pair.target.mode), None)
    seconds, plain = dict[int, list[float]](), dict[int, float]()
    draft, commit = dict[int, float](), dict[int, float]()
    recurrent, conv = request.target.recurrent.clone(), request.target.conv.clone()
    routing = None
    for context in contexts:
        request.ledger.length.fill_(context)
        request.draft.injected.fill_(context)
        found = measure(rounds, block, repeats)
        seconds[context], plain[context] = list(found.seconds[context]), found.plain[context]
        draft[context] = measure_draft(rounds, repeats)
        if routing is None:
            rounds.drafter = AnyDrafter.of(shape, pair.target.head.device)
            anchor = request.ledger.anchor
            moves = [partial(anchor.fill_, number) for number in range(ANCHORS)]
            routing = measure_routing(rounds, block, moves)
            rounds.drafter = pair.drafter
        commit[context] = spend_commits(rounds, block, repeats)
        request.target.recurrent.copy_(recurrent)
        request.target.conv.copy_(conv)
    return Latency.measured(seconds, plain=plain, routing=routing, draft=draft, commit=commit)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shape", default="qwen3.6-35b-a3b")
    parser.add_argument("--contexts", default="1024,16384,65536,131072")
    parser.add_argument("--repeats", type=count, default=10)
    parser.add_argument("--mode", choices=("exact", "fast"), default="exact")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    need_cuda()
    contexts = sorted({int(context) for context in options.contexts.split(",")})
    scene = Scene(
        mode=options.mode,
        world="chat",
        persistence=None,
        context=PROMPT,
        max_new_tokens=contexts[-1] + MAX_ROWS,
    )
    shape = Shape.load(options.shape)
    check_fit(shape, scene)
    device = torch.device("cuda")
    pair = RandomPair.made(shape, scene, device)
    latency = profiled(pair, contexts, options.repeats)
    peak = torch.cuda.max_memory_allocated() - held_bytes([pair.target, pair.drafter.drafter])
    result = {
        "benchmark": "profile_time",
        "shape": shape.name,
        "mode": options.mode,
        "weights": "random",
        "latency": latency.to_json(),
        "peak_over_weights_gib": peak / 2**30,
        **observe(
            device,
            f"python benchmarks/profile_time.py --shape {shape.name} --contexts "
            f"{','.join(map(str, contexts))} --repeats {options.repeats} --mode {options.mode}",
        ).to_json(),
    }
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print({c: f"{1e3 * latency.plain[c]:.3f} ms" for c in contexts}, latency.routing)


if __name__ == "__main__":
    main()
