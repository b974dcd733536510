# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How fast a checkpoint comes onto a GPU, and what host and device hold at most meanwhile.

    python benchmarks/loading_time.py [--shape qwen3.6-35b-a3b] [--layers 8] [--repeats 3]

Writes random tensors in the shape's layers, fewer of them, one layer a shard, to --directory; reads
the files once, so that they lie in the page cache; then loads them in a process of its own. Host
memory is anonymous memory, sampled every 2 ms: mapped pages of files are the kernel's to drop.
--whole-model also loads by way of a whole model in float32. Writes results/loading_time.json, or
--output.
"""

import argparse
import json
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from arguments import count, need_cuda
from safetensors.torch import save_file

from hybridspec.bench.circumstances import observe
from hybridspec.bench.shape import shape_directory
from hybridspec.engine.loading import CUDA_DTYPE, Checkpoint
from hybridspec.engine.memory import held_bytes
from hybridspec.models.fused import FusedTarget
from hybridspec.models.operations import of_mode
from hybridspec.models.reading import Staged
from hybridspec.models.target_config import TargetConfig
from hybridspec.models.target_layout import load_target

RESULT = Path(__file__).parent / "results" / "loading_time.json"
CUDA, CPU = torch.device("cuda"), torch.device("cpu")
SAMPLED = 2e-3
"""seconds between two looks at the host's memory"""
Put = Callable[..., None]


def write_checkpoint(directory: Path, shape: str, layers: int, *, is_one_by_one: bool) -> int:
    """A random checkpoint of Qwen3.5's layout in bfloat16; its bytes. Holds one shard at a time."""
    source = shape_directory(shape) / "target" / "config.json"
    whole = json.loads(source.read_text(encoding="utf-8"))
    text = whole.get("text_config", whole)
    text |= {"num_hidden_layers": layers, "layer_types": text["layer_types"][:layers]}
    (directory / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    config, weight_map, written = TargetConfig.load(directory), dict[str, str](), 0
    for shard in range(layers + 1):
        tensors, file = dict[str, torch.Tensor](), f"model-{shard:05}.safetensors"

        def put(name: str, *size: int, into: dict[str, torch.Tensor] = tensors) -> None:
            drawn = torch.empty(size, dtype=CUDA_DTYPE, device=CUDA).normal_(0, 0.02)
            into[name] = drawn.cpu()

        put_layer(put, config, shard, is_one_by_one) if shard < layers else put_rest(put, config)
        save_file(tensors, directory / file)
        weight_map |= dict.fromkeys(tensors, file)
        written += sum(tensor.nbytes for tensor in tensors.values())
    index = json.dumps({"metadata": {"total_size": written}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return written


def put_rest(put: Put, config: TargetConfig) -> None:
    D, V = config.hidden_size, config.vocab_size
    put("model.language_model.embed_tokens.weight", V, D)
    put("model.language_model.norm.weight", D)
    put("lm_head.weight", V, D)


def put_layer(put: Put, config: TargetConfig, number: int, is_one_by_one: bool) -> None:
    name, D = f"model.language_model.layers.{number}.", config.hidden_size
    put(f"{name}input_layernorm.weight", D)
    put(f"{name}post_attention_layernorm.weight", D)
    if config.layer_types[number] == "linear_attention":
        put_gdn(put, config, f"{name}linear_attn.")
    else:
        put_attention(put, config, f"{name}self_attn.")
    E, inner, S = (
        config.num_experts,
        config.moe_intermediate_size,
        config.shared_expert_intermediate_size,
    )
    put(f"{name}mlp.gate.weight", E, D)
    for part, size in (("gate", (S, D)), ("up", (S, D)), ("down", (D, S))):
        put(f"{name}mlp.shared_expert.{part}_proj.weight", *size)
    put(f"{name}mlp.shared_expert_gate.weight", 1, D)
    if not is_one_by_one:
        put(f"{name}mlp.experts.gate_up_proj", E, 2 * inner, D)
        put(f"{name}mlp.experts.down_proj", E, D, inner)
        return
    for expert in range(E):
        for part, size in (("gate", (inner, D)), ("up", (inner, D)), ("down", (D, inner))):
            put(f"{name}mlp.experts.{expert}.{part}_proj.weight", *size)


def put_gdn(put: Put, config: TargetConfig, name: str) -> None:
    D, C, HV = config.hidden_size, config.conv_width, config.linear_num_value_heads
    V = config.linear_value_head_dim
    for part, rows in (("qkv", C), ("z", HV * V), ("b", HV), ("a", HV)):
        put(f"{name}in_proj_{part}.weight", rows, D)
    put(f"{name}conv1d.weight", C, 1, config.linear_conv_kernel_dim)
    put(f"{name}A_log", HV)
    put(f"{name}dt_bias", HV)
    put(f"{name}norm.weight", V)
    put(f"{name}out_proj.weight", D, HV * V)


def put_attention(put: Put, config: TargetConfig, name: str) -> None:
    hidden, D = config.hidden_size, config.head_dim
    H, HKV = config.num_attention_heads, config.num_key_value_heads
    for part, rows in (("q", 2 * H * D), ("k", HKV * D), ("v", HKV * D)):
        put(f"{name}{part}_proj.weight", rows, hidden)
    put(f"{name}o_proj.weight", hidden, H * D)
    put(f"{name}q_norm.weight", D)
    put(f"{name}k_norm.weight", D)


def warm(directory: Path) -> float:
    """Read all files; the seconds that it took."""
    start, buffer = time.perf_counter(), bytearray(1 << 26)
    for path in directory.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def anonymous_bytes() -> int | None:
    """Of this process, now; None where the system does not tell."""
    for path, name in (("/proc/self/status", "RssAnon"), ("/proc/self/smaps_rollup", "Anonymous")):
        try:
            text = Path(path).read_text(encoding="ascii")
        except OSError:
            continue
        if found := re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE):
            return int(found[1]) * 1024
    return None


class HostPeak:
    """Most anonymous memory within it, over what there was before."""

    def __enter__(self) -> "HostPeak":
        self._before, self.over = anonymous_bytes(), None if anonymous_bytes() is None else 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while self._before is not None and not self._end.wait(SAMPLED):
            self.over = max(self.over or 0, (anonymous_bytes() or 0) - self._before)

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def straight(directory: Path) -> FusedTarget:
    """As the engine loads."""
    found = Checkpoint.found(directory, None, needs_drafter=False)
    return found.fused("exact", Staged(CUDA, CUDA_DTYPE))[0]


def by_whole_model(directory: Path) -> FusedTarget:
    """By way of a model in float32 on the host."""
    plain = load_target(directory, operations=of_mode("exact"), taps=(), device=CPU)
    return FusedTarget.of(plain, mode="exact", dtype=CUDA_DTYPE, device=CUDA)


def loaded(load: Callable[[Path], FusedTarget], directory: Path, size: int) -> dict[str, Any]:
    """One load: seconds, and peaks over what stays."""
    torch.zeros(1, device=CUDA)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with HostPeak() as host:
        start = time.perf_counter()
        target = load(directory)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    weights = held_bytes(target)
    return {
        "seconds": seconds,
        "gigabytes_a_second": size / seconds / 1e9,
        "host_peak_bytes": host.over,
        "device_peak_over_weights_bytes": torch.cuda.max_memory_allocated() - before - weights,
        "device_reserved_over_weights_bytes": torch.cuda.max_memory_reserved() - before - weights,
        "weights_bytes": weights,
        "layer_bytes": held_bytes(target.layers[0]),
    }


def loads(name: str, directory: Path, size: int, repeats: int) -> list[dict[str, Any]]:
    """In a process of its own."""
    load = {"straight": straight, "whole model": by_whole_model}[name]
    return [loaded(load, directory, size) for _ in range(repeats)]


def measured(name: str, directory: Path, size: int, repeats: int) -> dict[str, Any]:
    """The runs of one way to load, and their median speed."""
    with get_context("spawn").Pool(1) as pool:
        runs = pool.apply(loads, (name, directory, size, repeats))
    speed = statistics.median(run["gigabytes_a_second"] for run in runs)
    print(name, f"{speed:.2f} GB/s", json.dumps(runs[0]), flush=True)
    return {"way": name, "median_gigabytes_a_second": speed, "runs": runs}


def main() -> int:
    """Write, load and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen3.6-35b-a3b")
    parser.add_argument("--layers", type=count, default=8)
    parser.add_argument("--repeats", type=count, default=3)
    parser.add_argument("--one-by-one", action="store_true", help="experts in tensors of their own")
    parser.add_argument("--whole-model", action="store_true")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--output", type=Path, default=RESULT)
    own = parser.parse_args()
    need_cuda()
    directory = Path(tempfile.mkdtemp(prefix="hybridspec-", dir=own.directory))
    try:
        size = write_checkpoint(directory, own.shape, own.layers, is_one_by_one=own.one_by_one)
        torch.cuda.empty_cache()
        warmed = warm(directory)
        print(f"{size / 1e9:.1f} GB written; read by one thread in {warmed:.1f} s", flush=True)
        ways = [measured("straight", directory, size, own.repeats)]
        if own.whole_model:
            ways.append(measured("whole model", directory, size, 1))
        shards = [path.stat().st_size for path in directory.glob("*.safetensors")]
    finally:
        shutil.rmtree(directory)
    flags = " --one-by-one" * own.one_by_one + " --whole-model" * own.whole_model
    result = {
        "benchmark": "loading_time",
        "shape": own.shape,
        "weights": "random",
        "layers": own.layers,
        "experts": "one by one" if own.one_by_one else "fused",
        "bytes": size,
        "largest_shard_bytes": max(shards),
        "page_cache_seconds": warmed,
        "threads": torch.get_num_threads(),
        "ways": ways,
        **observe(
            CUDA,
            f"python benchmarks/loading_time.py --shape {own.shape} --layers {own.layers} "
            f"--repeats {own.repeats}{flags}",
        ).to_json(),
    }
    own.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
