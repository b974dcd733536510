# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Compile the GDN kernels for sm_90, no GPU needed: registers, spills and shared memory by width.

    python benchmarks/gdn_compile.py

Every launch is made with the parameters of kernels/gdn/launches.py, heads and dtype of
Qwen3.6-35B-A3B: a recorder stands in the place of each kernel, so that nothing is written twice.
Writes results/gdn_compile.json. TRITON_INTERPRET must not be set.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hybridspec.kernels.gdn import launches
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState, GdnWeights
from hybridspec.kernels.reference.norm import HeadGate

RESULT = Path(__file__).parent / "results" / "gdn_compile.json"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
KERNELS = ("convolve_kernel", "walk_kernel", "block_kernel", "commit_kernel")
H, HV, ROWS = 16, 32, 16
SHARED_LIMIT = 227 << 10
"""bytes that a program of sm_90 may hold"""
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
}
STRAY = 16
OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One kernel at one width."""

    kernel: str
    K: int
    V: int
    columns: int | None
    """values of a head that a program takes; None where it takes all"""
    warps: int
    registers: int
    spilled_bytes: int
    """a thread's stack and local memory"""
    strays: int
    """branches that part a warp's threads and do not gather them"""
    shared_bytes: int
    seconds: float
    """to compile"""
    ptx: str = field(repr=False)


@dataclass(slots=True)
class Recorder:
    """Stands in a kernel's place and keeps the arguments of its launches."""

    kernel: triton.JITFunction
    launches: list[dict[str, object]] = field(default_factory=list)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """The launch, as of a kernel."""
        return self._launch

    def _launch(self, *arguments: object, **named: object) -> None:
        self.launches.append(dict(zip(self.kernel.arg_names, arguments, strict=False)) | named)


def recorded(
    run: Callable[[], object], module: ModuleType = launches, names: tuple[str, ...] = KERNELS
) -> Iterator[tuple[triton.JITFunction, dict[str, object]]]:
    """Every kernel of the module that `run` launches, with all its arguments."""
    recorders = {name: Recorder(getattr(module, name)) for name in names}
    with patch.multiple(module, overlaps=lambda device: True, **recorders):
        run()
    for recorder in recorders.values():
        for launch in recorder.launches:
            yield recorder.kernel, launch


def compile_launch(
    kernel: triton.JITFunction, launch: dict[str, object]
) -> tuple[triton.compiler.CompiledKernel, dict[str, object]]:
    """The kernel as that launch would compile it, pointers at multiples of 16 bytes."""
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = launch[name]
        if isinstance(value, Tensor):
            signature[name] = POINTERS[value.dtype]
            attributes[place,] = [["tt.divisibility", 16]]
        elif kernel.params[place].is_constexpr:
            signature[name], constants[place,] = "constexpr", value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    options = {name: launch[name] for name in OPTIONS if name in launch}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options), options


def resources(cubin: bytes) -> tuple[int, int, int]:
    """Registers and spilled bytes of a thread, and stray branches."""
    text = dumped(cubin, "--dump-resource-usage")
    numbers = {
        name: int(re.findall(rf"{name}:(\d+)", text)[-1]) for name in ("REG", "STACK", "LOCAL")
    }
    return numbers["REG"], numbers["STACK"] + numbers["LOCAL"], strays(dumped(cubin, "-sass"))


def dumped(cubin: bytes, what: str) -> str:
    """What cuobjdump says of a binary."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def strays(sass: str) -> int:
    """Branches that part a warp's threads without gathering them (BSSY) before they must agree.

    ptxas 12.8 made such of predicated stores; products and exchanges behind them are then wrong. A
    branch counts that skips at most STRAY instructions, none of which ends or synchronises.
    """
    found = re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?)\s*;", sass)
    code = [(int(address, 16), text) for address, text in found]
    gathering, count = 0, 0
    for place, (_, text) in enumerate(code):
        gathering += text.startswith("BSSY")
        gathering -= text.startswith("BSYNC")
        branch = re.match(r"@!?P\d BRA (0x[0-9a-f]+)", text)
        if branch is None or gathering > 0 or not any("BAR" in rest for _, rest in code[place:]):
            continue
        skipped = [rest for at, rest in code[place + 1 :] if at < int(branch[1], 16)]
        if 0 < len(skipped) <= STRAY and not re.search("BAR|EXIT", " ".join(skipped)):
            count += 1
    return count


def layer(K: int, V: int) -> tuple[tuple[object, ...], GdnState, GdnRecords, Tensor]:
    """Arguments of a verification, and of a commit."""
    C = 2 * H * K + HV * V

    def bf16(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.bfloat16)

    weights = GdnWeights(conv=bf16(4, C), decay_rate=torch.empty(HV), dt_bias=torch.empty(HV))
    state = GdnState(conv=bf16(3, C), recurrent=torch.empty(HV, V, K).mT)
    records = GdnRecords(
        inputs=bf16(ROWS, C),
        keys=torch.empty(ROWS, H, K),
        updates=torch.empty(ROWS, HV, V),
        log_decays=torch.empty(ROWS, HV),
    )
    rows = torch.ones((), dtype=torch.int32)
    inputs = (bf16(ROWS, C), bf16(ROWS, HV), bf16(ROWS, HV), weights)
    return inputs, state, records, rows


def compiled(K: int, V: int, names: tuple[str, ...] = ()) -> Iterator[Compiled]:
    """Each kernel of one width, or those named; commit_kernel is two, by its name's ending."""
    inputs, state, records, rows = layer(K, V)
    layers = GdnRecords(**{name: getattr(records, name)[None] for name in records.__slots__})
    gate = HeadGate(
        z=torch.empty(ROWS, HV, V, dtype=torch.bfloat16),
        weight=torch.empty(V),
        squares=torch.empty(ROWS, HV, launches.head_groups(K, V)),
    )

    def run() -> None:
        launches.verify_exact(*inputs, state, records, rows, gate)
        launches.verify_block(*inputs, state, records, rows, gate)
        for commit in (launches.commit, launches.commit_block):
            commit(state.conv[None], state.recurrent[None], layers, rows)

    for kernel, launch in recorded(run):
        name = kernel.__name__.removesuffix("_kernel")
        if name == "commit":
            name = "commit_exact" if launch["IS_EXACT"] else "commit_block"
        if names and name not in names:
            continue
        start = time.perf_counter()
        binary, options = compile_launch(kernel, launch)
        registers, spilled, stray = resources(binary.asm["cubin"])
        yield Compiled(
            kernel=name,
            K=K,
            V=V,
            columns=launch.get("BLOCK_V"),
            warps=options["num_warps"],
            registers=registers,
            spilled_bytes=spilled,
            strays=stray,
            shared_bytes=binary.metadata.shared,
            seconds=round(time.perf_counter() - start, 1),
            ptx=binary.asm["ptx"],
        )


def main() -> int:
    """0 if every kernel fits at every width and parts no warp."""
    found = []
    for K in launches.WIDTHS:
        for V in launches.WIDTHS:
            for one in compiled(K, V):
                print(
                    {name: value for name, value in asdict(one).items() if name != "ptx"},
                    flush=True,
                )
                found.append({k: v for k, v in asdict(one).items() if k not in ("ptx", "seconds")})
    result = {
        "benchmark": "gdn_compile",
        "target": "sm_90",
        "dtype": "bfloat16",
        "key_heads": H,
        "value_heads": HV,
        "rows": ROWS,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "kernels": found,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any(one["shared_bytes"] > SHARED_LIMIT or one["strays"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
