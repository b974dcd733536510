# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Record the trace of benchmarks/policy_facts.py: held-out text in four classes, embedded pair.

OMP_NUM_THREADS=1 python benchmarks/trace_heldout.py TRACE
"""

import argparse
import sys
from pathlib import Path

import torch
from arguments import count
from heldout_text import prompts

from hybridspec import LLM
from hybridspec.bench.record import record


def main() -> int:
    """Record and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--prompts", type=count, default=58, help="of each class")
    parser.add_argument("--skip", type=int, default=0, help="prompts of each class to leave out")
    parser.add_argument("--max-new-tokens", type=count, default=160)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    llm = LLM(policy="fixed", device="cpu")
    left_out = set(prompts(llm.pair.tokenizer, asked.skip)) if asked.skip else set()
    chosen = [own for own in prompts(llm.pair.tokenizer, asked.prompts) if own not in left_out]
    trace = record(
        llm,
        chosen,
        max_new_tokens=asked.max_new_tokens,
        progress=lambda done, total: print(f"\r{done}/{total}", end="", file=sys.stderr),
    )
    trace.save(asked.trace)
    print(f"\n{len(trace.tokens)} positions of {len(trace.classes)} texts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
