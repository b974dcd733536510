# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Measure again what the documents show, by the names of the results.

    python benchmarks/again.py                        (lists them)
    python benchmarks/again.py round_time decode_random [--into FOLDER]

Each is a process of its own; one that writes nothing leaves the result that was there. Afterwards
`python benchmarks/readme.py` draws the documents. Exit code 1 if one failed or missed what it asks.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DECODE = "-m hybridspec.bench decode --json"
PAIR = f"{DECODE} --policies plain,fixed:4,fixed:8,fixed:16,hybrid --mode"
RANDOM = (
    f"{DECODE} --shape qwen3.6-35b-a3b --random-weights --persistence 0.4 --mode exact "
    "--max-new-tokens 2048 --repeats 1"
)
CPU = {
    "decode_cpu_exact": f"{PAIR} exact",
    "decode_cpu_fast": f"{PAIR} fast",
    "equality": "benchmarks/equality.py",
    "hindsight_cpu": "benchmarks/hindsight.py --repeats 5",
    "never_slower_cpu": "benchmarks/never_slower.py",
    "world_replay": "benchmarks/world_replay.py --positions 20000",
}
GPU = {
    "gpu_tests": "benchmarks/gpu_tests.py -q -n 10",
    "gdn_verify": "benchmarks/gdn_verify.py",
    "round_time": "benchmarks/round_time.py --repeats 15",
    "decode_random": f"{RANDOM} --acceptance-world mixed --policies "
    "plain,fixed:4,fixed:8,fixed:16,hybrid,hybrid:off,hybrid:window",
    "decode_random_correlated": f"{RANDOM} --acceptance-world mixed --correlation 0.8 --policies "
    "plain,hybrid:off,hybrid,hybrid:window",
    "decode_random_maths": f"{RANDOM} --acceptance-world maths --policies "
    "plain,fixed:16,hybrid,hybrid:off",
    "random_equality": "benchmarks/random_equality.py --prompts 20",
    "hindsight_cuda": "benchmarks/hindsight.py --device cuda --prompts 12 --max-new-tokens 256 "
    "--repeats 5",
    "never_slower_cuda": "benchmarks/never_slower.py --device cuda",
    "policy_time": "benchmarks/policy_time.py",
    "prefill_time": "benchmarks/prefill_time.py",
    "prefill_distance": "benchmarks/prefill_distance.py",
    "profile_time": "benchmarks/profile_time.py",
    "loading_time": "benchmarks/loading_time.py --layers 8",
}
COMMANDS = CPU | GPU


def measured(name: str, folder: Path) -> bool:
    """Run one; whether it wrote a result and found what it asks for."""
    command = [sys.executable, *shlex.split(COMMANDS[name])]
    threads = {"OMP_NUM_THREADS": "1"} if name in CPU else {}
    run = partial(subprocess.run, cwd=ROOT, env=os.environ | threads, check=False)
    print(f"{name}: {shlex.join(['python', *command[1:]])}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "result.json"
        if "--json" in command:
            with output.open("wb") as file:
                ended = run(command, stdout=file)
        else:
            ended = run([*command, "--output", str(output)])
        is_written = output.exists() and output.stat().st_size > 0
        if is_written:
            (folder / f"{name}.json").write_bytes(output.read_bytes())
    print(f"{name}: exit code {ended.returncode}{'' if is_written else ', nothing written'}")
    return is_written and ended.returncode == 0


def main() -> int:
    """Run those that are named, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a result; none: list them")
    parser.add_argument("--into", type=Path, default=RESULTS, help="folder for the results")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in COMMANDS]
    if unknown:
        parser.error(
            f"no result is called {', '.join(unknown)}: give some of {', '.join(COMMANDS)}"
        )
    if not asked.names:
        for device, commands in (("CPU", CPU), ("GPU", GPU)):
            print(f"on a {device}:")
            for name, command in commands.items():
                print(f"  {name:<26}python {command}")
        return 0
    asked.into.mkdir(parents=True, exist_ok=True)
    found = [measured(name, asked.into) for name in asked.names]  # all, whatever one comes to
    return int(not all(found))


if __name__ == "__main__":
    sys.exit(main())
