# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A prompt read in chunks beside the same prompt read token by token: states, and what follows.

    python benchmarks/prefill_distance.py [--device cuda]

The embedded pair as it ships. The state after each of the first 130 tokens of a text and after
1,000, as the largest relative distance of a tensor; and of every held-out prompt the first token
that plain decoding writes otherwise from the one than from the other. Writes
results/prefill_distance.json, or --output.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from arguments import count
from torch import Tensor

from hybridspec import LLM
from hybridspec.bench.circumstances import observe
from hybridspec.engine.loop import Tally, decode, read_prompt
from hybridspec.engine.round import Reader, Rounds
from hybridspec.models.embedded import heldout_prompts
from hybridspec.models.state import TargetState

RESULT = Path(__file__).parent / "results" / "prefill_distance.json"
SHORT, LONG = 130, 1000


class OneByOne:
    """A target that reads its prompts token by token."""

    def __init__(self, target: Reader) -> None:
        """All else is the target's."""
        self._target = target

    def __getattr__(self, name: str) -> object:
        return getattr(self._target, name)

    def read_prompt(self, tokens: Tensor, state: TargetState) -> object:
        """The reading of the last one."""
        one, reading = torch.ones_like(state.length), None
        for token in tokens.split(1):
            routed = self._target.read_to_router(token, one, state)
            reading = self._target.read_on(routed, one, state)
            state.commit(one)
            state.length.add_(one)
        assert reading is not None
        return type(reading)(tokens=reading.tokens[:1], gaps=reading.gaps[:1], taps=reading.taps)


def distance(state: TargetState, judge: TargetState) -> tuple[float, str]:
    """The largest of a tensor of the state, relative, and its name."""
    wanted = judge.committed()
    return max(
        (float((x.double() - wanted[name].double()).norm() / wanted[name].double().norm()), name)
        for name, x in state.committed().items()
        if name != "length"
    )


@torch.inference_mode()
def distances(llm: LLM) -> dict[int, tuple[float, str]]:
    """By length of the prompt."""
    target = llm.pair.target
    ids = llm.pair.tokenizer.encode("\n".join(heldout_prompts("test")))[:LONG]
    tokens = torch.tensor(ids, device=llm.device)
    judge, by_row, found = target.empty_state(LONG), OneByOne(target), {}
    for length, token in enumerate(tokens.split(1), start=1):
        by_row.read_prompt(token, judge)
        if length <= SHORT or length == LONG:
            state = target.empty_state(LONG)
            target.read_prompt(tokens[:length], state)
            found[length] = distance(state, judge)
    return found


def written(rounds: Rounds, ids: list[int], reader: Reader, budget: int) -> list[int]:
    """What plain decoding writes after a prompt that `reader` has read."""
    rounds.reset()
    read_prompt(rounds.request, ids, target=reader, drafter=None, budget=budget)
    return [token for emission in decode(rounds, Tally()) for token in emission.token_ids]


def divergences(llm: LLM, tokens: int) -> list[int | None]:
    """Of each prompt the first token that differs; None: none does."""
    plain, found = llm.using(policy="plain"), list[int | None]()
    for prompt in heldout_prompts("test"):
        ids = plain.pair.tokenizer.encode(prompt)
        with plain.opening.text(ids, tokens) as rounds:
            budget = min(tokens, rounds.request.positions - len(ids))
            ours = written(rounds, ids, rounds.target, budget)
            theirs = written(rounds, ids, OneByOne(rounds.target), budget)  # pyright: ignore
        pairs = enumerate(zip(ours, theirs, strict=False))
        found.append(next((i for i, (a, b) in pairs if a != b), None))
    return found


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=count, default=128, help="that follow a prompt")
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    llm = LLM(device=asked.device)
    of_length, parted = distances(llm), divergences(llm, asked.tokens)
    worst = max(of_length, key=lambda length: of_length[length])
    result = {
        "benchmark": "prefill_distance",
        "largest": {"distance": of_length[worst][0], "of": of_length[worst][1], "tokens": worst},
        "median_of_lengths": statistics.median(value for value, _ in of_length.values()),
        "of_long": {"distance": of_length[LONG][0], "of": of_length[LONG][1], "tokens": LONG},
        "prompts": len(parted),
        "tokens_after": asked.tokens,
        "first_divergences": parted,
        **observe(
            llm.device,
            f"python benchmarks/prefill_distance.py --device {asked.device} "
            f"--tokens {asked.tokens}",
        ).to_json(),
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shown = ("largest", "median_of_lengths", "of_long", "first_divergences")
    print({name: result[name] for name in shown})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
