# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What choosing, correcting and learning take inside a recorded round.

    python benchmarks/policy_time.py

Rounds of the embedded pair that read the whole block: by fixed:16, and by hybrid to whom time is
free (kappa 0), so that the difference is the policy's own. Arms take turns; each turn is a run of
rounds between two events. Needs a CUDA device. Writes results/policy_time.json, or --output.
"""

import argparse
import json
import statistics
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from arguments import count, need_cuda

from hybridspec import LLM
from hybridspec.bench.circumstances import observe
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.round import Rounds
from hybridspec.models.embedded import heldout_prompts
from hybridspec.policy.policy import Hybrid

RESULT = Path(__file__).parent / "results" / "policy_time.json"
ROUNDS = 24
"""of a turn; the text must not end before"""


@contextmanager
def begun(llm: LLM) -> Generator[Rounds]:
    """Rounds that read whole blocks, with room for a turn."""
    prompt = llm.pair.tokenizer.encode(heldout_prompts("test")[0])
    with llm.opening.text(prompt, (ROUNDS + 2) * MAX_ROWS) as rounds:
        rounds.request.stop_ids.fill_(-1)
        if isinstance(rounds.policy, Hybrid):
            rounds.policy = replace(rounds.policy, kappa=0.0)
        yield rounds


@torch.inference_mode()
def turn(rounds: Rounds) -> float:
    """Microseconds of a round, in the middle of one text again and again."""
    kept = [(x, x.clone()) for x in moving(rounds)]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(ROUNDS):
        rounds.drafted_round()
    end.record()
    end.synchronize()
    read = rounds.request.ledger.ring[:, MAX_ROWS + 1].tolist()
    if set(read) != {MAX_ROWS}:
        raise RuntimeError(f"rounds read {read} rows, not whole blocks")
    for tensor, before in kept:
        tensor.copy_(before)
    return start.elapsed_time(end) / ROUNDS * 1e3


def moving(rounds: Rounds) -> list[torch.Tensor]:
    """What a text moves, but caches that are written beyond its end."""
    request, ledger = rounds.request, rounds.request.ledger
    state, draft = request.target, request.draft
    return [
        *(ledger.anchor, ledger.budget, ledger.length, ledger.is_done, state.conv),
        *(state.recurrent, draft.injected, draft.waiting, draft.ring),
    ]


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=count, default=60)
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    need_cuda()
    llm = LLM(device="cuda")
    arms = {
        "fixed:16": llm.using(policy="fixed"),
        "hybrid:off": llm.using(correction="off"),
        "hybrid:one": llm.using(correction="one"),
    }
    samples: dict[str, list[float]] = {name: [] for name in arms}
    with ExitStack() as texts:
        rounds = {name: texts.enter_context(begun(own)) for name, own in arms.items()}
        for repeat in range(asked.repeats + 1):
            for name, own in rounds.items():
                spent = turn(own)
                if repeat:  # the first records
                    samples[name].append(spent)
    medians = {name: statistics.median(own) for name, own in samples.items()}
    found = {
        name: {
            "round_us": medians[name],
            "p10_us": sorted(own)[len(own) // 10],
            "p90_us": sorted(own)[-1 - len(own) // 10],
            "policy_us": medians[name] - medians["fixed:16"],
        }
        for name, own in samples.items()
    }
    for name, figures in found.items():
        print(name, {key: round(value, 2) for key, value in figures.items()})
    command = f"python benchmarks/policy_time.py --repeats {asked.repeats}"
    result = {
        "benchmark": "policy_time",
        "rounds": ROUNDS,
        "arms": found,
        **observe(torch.device("cuda"), command).to_json(),
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
