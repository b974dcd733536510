# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How long a prompt takes on a GPU, and how much memory; random weights and tokens.

    python benchmarks/prefill_time.py [--shape qwen3.6-35b-a3b] [--lengths 8192 32768 65536]
        [--repeats 5]

Every repeat reads other random tokens into a new state, chunk by chunk as the engine does; taps are
made and dropped. The first read of a length compiles and tunes, and is not counted. Memory is the
peak beyond weights, the request's own state included. Writes results/prefill_time.json, or
--output.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from arguments import count, need_cuda

from hybridspec.bench.circumstances import observe
from hybridspec.bench.random_weights import random_target
from hybridspec.bench.shape import shape_directory
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.fused import FusedTarget
from hybridspec.models.target import PREFILL_CHUNK
from hybridspec.models.target_config import TargetConfig

RESULT = Path(__file__).parent / "results" / "prefill_time.json"


def read(target: FusedTarget, tokens: torch.Tensor) -> tuple[float, int]:
    """Seconds to read a prompt, the making of its state not counted; and the peak in bytes."""
    state = target.empty_state(len(tokens))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for piece in tokens.split(PREFILL_CHUNK):
        target.read_prompt(piece, state)
    torch.cuda.synchronize()
    seconds, peak = time.perf_counter() - begin, torch.cuda.max_memory_allocated()
    if not bool(state.recurrent.isfinite().all() and state.keys.isfinite().all()):
        raise RuntimeError(f"a prompt of {len(tokens)} tokens left numbers that are not finite")
    return seconds, peak


def measured(target: FusedTarget, length: int, repeats: int) -> dict[str, object]:
    """All repeats of one length."""
    seconds, weights, most = list[float](), torch.cuda.memory_allocated(), 0
    for number in range(repeats + 1):
        device = target.head.device
        tokens = torch.randint(target.config.vocab_size, (length,), device=device)
        torch.cuda.reset_peak_memory_stats()
        once, peak = read(target, tokens)
        most = max(most, peak)
        if number:
            seconds.append(once)
    return {
        "tokens": length,
        "median_s": statistics.median(seconds),
        "min_s": min(seconds),
        "max_s": max(seconds),
        "tokens_per_second": length / statistics.median(seconds),
        "peak_over_weights_gib": (most - weights) / 2**30,
    }


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3.6-35b-a3b")
    parser.add_argument("--lengths", type=count, nargs="+", default=[8192, 32768, 65536])
    parser.add_argument("--repeats", type=count, default=5)
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    need_cuda()
    device, directory = torch.device("cuda"), shape_directory(asked.shape)
    taps = DraftConfig.load(directory / "drafter").target_layer_ids
    config = TargetConfig.load(directory / "target")
    with torch.inference_mode():
        target = random_target(config, mode="exact", taps=taps, device=device)
        entries = [measured(target, length, asked.repeats) for length in asked.lengths]
    for entry in entries:
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in entry.items()})
    result = {
        "benchmark": "prefill_time",
        "shape": asked.shape,
        "weights": "random",
        "chunk": PREFILL_CHUNK,
        "lengths": entries,
        **observe(
            device,
            f"python benchmarks/prefill_time.py --shape {asked.shape} --lengths "
            f"{' '.join(map(str, asked.lengths))} --repeats {asked.repeats}",
        ).to_json(),
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
