# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Compile the kernels of a pass for sm_90, no GPU needed: products, router, experts, the stream.

    python -m benchmarks.pass_compile

Every launch of Qwen3.6-35B-A3B in bf16, by the recorder of gdn_compile.py. Writes
results/pass_compile.json. TRITON_INTERPRET must not be set.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import torch
import triton
from torch import Tensor

from benchmarks.gdn_compile import SHARED_LIMIT, compile_launch, recorded, resources
from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import experts, product, router, stream
from hybridspec.kernels.gdn.rows import CONV
from hybridspec.kernels.reference.gdn import Convolution
from hybridspec.kernels.reference.norm import Heads
from hybridspec.kernels.reference.router import Routing
from hybridspec.kernels.reference.stream import Stream

RESULT = Path(__file__).parent / "results" / "pass_compile.json"
D, V, E, TOP, WIDTH, EPS, CHANNELS = 2048, 248320, 256, 8, 512, 1e-6, 8192
PROJECTED = (12352, 9216, 5120)
"""rows of the weights of GDN, attention and the drafter's attention"""
ONTO = (4096, 6144)
"""inner dimensions of the weights of both attentions and GDN, and of the drafter's MLP"""
GATED = 6144
SPILLED = {"project": 32, "project_onto": 32}
"""bytes a thread may spill: addresses that are put aside once, outside of any loop"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One kernel of one launch."""

    kernel: str
    launch: str
    warps: int
    registers: int
    spilled_bytes: int
    """a thread's stack and local memory"""
    strays: int
    """branches that part a warp's threads and do not gather them"""
    shared_bytes: int
    wide_loads: int
    """loads from memory into registers, 16 bytes a thread"""
    products: int
    """tensor-core instructions of one warp"""
    copies: int
    """asynchronous copies into shared memory"""
    matrix_loads: int
    """of operands from shared memory"""
    is_early: bool
    """launched before the launch ahead has ended"""
    waits: bool
    """for the launch ahead"""

    def fits(self) -> bool:
        """Whether it may be launched, and nothing parts or spills that should not."""
        spills = self.spilled_bytes > SPILLED.get(self.kernel, 0)
        return not (spills or self.strays or self.shared_bytes > SHARED_LIMIT)


def bf16(*size: int) -> Tensor:
    return torch.empty(size, dtype=torch.bfloat16, device="meta")


def runs() -> Iterator[tuple[str, ModuleType, tuple[str, ...], Callable[[], object]]]:
    """What is launched, in which module and by which kernels."""
    rows = torch.empty((), dtype=torch.int32, device="meta")
    tokens = torch.empty(MAX_ROWS, dtype=torch.int64, device="meta")
    held, norm = Stream.empty(D, dtype=torch.bfloat16, device="meta"), bf16(D)
    taps = bf16(MAX_ROWS, 5 * D)[:, :D]
    routing = Routing.empty(E, TOP, "meta", parts=router.splits(D))
    embedding = bf16(V, D)
    convolution = Convolution(
        weight=bf16(CONV, CHANNELS),
        past=bf16(CONV - 1, CHANNELS),
        inputs=bf16(MAX_ROWS, CHANNELS),
        mixed=torch.empty(MAX_ROWS, CHANNELS, device="meta"),
    )
    yield "", stream, ("_enter_kernel",), lambda: stream.enter(tokens, rows, embedding, norm, held)
    for M in PROJECTED:
        yield (
            f"{M}x{D}",
            product,
            ("project_kernel",),
            lambda M=M: product.project(held, bf16(M, D), rows, EPS),
        )
    yield (
        f"{PROJECTED[0]}x{D}, convolved",
        product,
        ("project_kernel",),
        lambda: product.project(held, bf16(PROJECTED[0], D), rows, EPS, convolution),
    )
    for K in ONTO:  # a stream that is wider than this model's: a tile in several rounds
        wider = Stream.empty(K, dtype=torch.bfloat16, device="meta")
        yield (
            f"5120x{K}",
            product,
            ("project_kernel",),
            lambda K=K, wider=wider: product.project(wider, bf16(5120, K), rows, EPS),
        )
    for K in ONTO:
        for name, tapped in {f"{D}x{K}": None, f"{D}x{K}, tapped": taps}.items():
            yield (
                name,
                product,
                ("project_onto_kernel",),
                lambda K=K, tapped=tapped: product.project_onto(
                    bf16(MAX_ROWS, K), bf16(D, K), rows, held, norm, tapped
                ),
            )
    heads = Heads(
        rows=bf16(MAX_ROWS, 32, 128),
        squares=torch.empty(MAX_ROWS, 32, 16, dtype=torch.float32, device="meta"),
    )
    yield (
        f"{D}x4096, heads",
        product,
        ("project_onto_kernel",),
        lambda: product.project_heads_onto(heads, bf16(D, 4096), rows, EPS, held, norm),
    )
    yield (
        f"{2 * GATED}x{D}, gated",
        product,
        ("gated_kernel",),
        lambda: product.project_gated(held, bf16(2 * GATED, D), rows, EPS),
    )
    yield (
        f"{E}x{D}",
        router,
        ("logits_kernel", "pick_kernel"),
        lambda: router.route_stream(held, bf16(E + 1, D), rows, EPS, routing),
    )
    yield f"{E}", router, ("list_kernel",), lambda: router.relist(routing, rows)
    weights = bf16(E + 1, 2 * WIDTH, D), bf16(E + 1, D, WIDTH)
    yield (
        f"{WIDTH} of {D}",
        experts,
        ("gate_up_kernel", "down_kernel"),
        lambda: experts.experts_onto(held, routing, *weights, rows, norm),
    )


def compiled() -> Iterator[Compiled]:
    """Every kernel as it is launched."""
    for name, module, kernels, run in runs():
        for kernel, launch in recorded(run, module, kernels):
            binary, options = compile_launch(kernel, launch)
            registers, spilled, stray = resources(binary.asm["cubin"])
            ptx = binary.asm["ptx"]
            yield Compiled(
                kernel=kernel.__name__.strip("_").removesuffix("_kernel"),
                launch=name,
                warps=options["num_warps"],
                registers=registers,
                spilled_bytes=spilled,
                strays=stray,
                shared_bytes=binary.metadata.shared,
                wide_loads=len(re.findall(r"ld\.global\S*\.v4\.b32", ptx)),
                products=len(re.findall(r"\bmma\.sync", ptx)),
                copies=len(re.findall(r"cp\.async\.c", ptx)),
                matrix_loads=ptx.count("ldmatrix"),
                is_early=launch.get("launch_pdl") is True,
                waits="griddepcontrol.wait" in ptx,
            )


def main() -> int:
    """0 if every kernel fits, parts no warp and spills what it may at most."""
    found = []
    for one in compiled():
        print(asdict(one), flush=True)
        found.append(one)
    result = {
        "benchmark": "pass_compile",
        "target": "sm_90",
        "dtype": "bfloat16",
        "hidden": D,
        "experts": E,
        "chosen": TOP,
        "rows": MAX_ROWS,
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "kernels": [asdict(one) for one in found],
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not all(one.fits() for one in found))


if __name__ == "__main__":
    sys.exit(main())
