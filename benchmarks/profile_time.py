# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""T(n, c) and a plain step at long contexts on a GPU; random weights in a real shape.

    python benchmarks/profile_time.py [--shape qwen3.6-35b-a3b] [--contexts 1024,65536,131072]

A short prompt is read; then keys and values are normal numbers and the lengths are moved to each
context in turn: the time of attention does not depend on values. Prints one object, or writes
--output.
"""

import argparse
import json
from pathlib import Path

import torch

from hybridspec.bench.circumstances import observe
from hybridspec.bench.options import Arm
from hybridspec.bench.random_pair import RandomPair, Scene, Shape, check_fit
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.measure import measure, measure_draft, spend_commits
from hybridspec.policy.latency import Latency

PROMPT = 64
"""tokens that are really read"""


@torch.inference_mode()
def profiled(
    shape: Shape, scene: Scene, contexts: list[int], *, repeats: int, device: torch.device
) -> Latency:
    """The table of all contexts, in one request."""
    pair = RandomPair.made(shape, scene, device)
    request = pair.request
    request.target.keys.normal_()
    request.target.values.normal_()
    request.draft.keys.normal_()
    request.draft.values.normal_()
    block = shape.drafter.block_size
    rounds = pair.rounds(Arm(policy="fixed", mode=scene.mode), None)
    seconds, plain = dict[int, list[float]](), dict[int, float]()
    draft, commit = dict[int, float](), dict[int, float]()
    recurrent, conv = request.target.recurrent.clone(), request.target.conv.clone()
    for context in contexts:
        request.ledger.length.fill_(context)
        request.draft.injected.fill_(context)
        found = measure(rounds, block, repeats)
        seconds[context], plain[context] = list(found.seconds[context]), found.plain[context]
        draft[context] = measure_draft(rounds, repeats)
        commit[context] = spend_commits(rounds, block, repeats)
        request.target.recurrent.copy_(recurrent)
        request.target.conv.copy_(conv)
    return Latency.measured(seconds, plain=plain, draft=draft, commit=commit)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shape", default="qwen3.6-35b-a3b")
    parser.add_argument("--contexts", default="1024,65536,131072")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--mode", choices=("exact", "fast"), default="exact")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
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
    latency = profiled(shape, scene, contexts, repeats=options.repeats, device=torch.device("cuda"))
    first = latency.plain[contexts[0]]
    result = {
        "shape": shape.name,
        "mode": options.mode,
        "weights": "random; experts by the router's own choice",
        "plain_over_first": {str(c): latency.plain[c] / first for c in contexts},
        **latency.to_json(),
        **observe(torch.device("cuda"), f"profile_time.py --mode {options.mode}").to_json(),
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text, encoding="utf-8")
    print({c: f"{1e3 * latency.plain[c]:.3f} ms" for c in contexts})


if __name__ == "__main__":
    main()
