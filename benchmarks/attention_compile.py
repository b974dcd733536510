# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Compile the attention kernels for sm_90, no GPU needed: registers, spills and shared memory.

    python -m benchmarks.attention_compile

Every launch is made with the parameters of kernels/attention.py, at the shapes of published models,
by the recorder of gdn_compile.py. Prints a line a kernel. TRITON_INTERPRET must not be set.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from unittest.mock import patch

import torch
import triton

from benchmarks import gdn_compile
from hybridspec.kernels import attention
from hybridspec.kernels.reference.attention import PAGE

KERNELS = ("split_kernel", "combine_kernel", "context_kernel")
SHAPES = {
    "Qwen3.6-35B-A3B": (16, 2, 256, 64),
    "Qwen3.5-397B-A17B": (32, 2, 256, 64),
    "DFlash": (32, 4, 128, 128),
    "small": (4, 2, 32, 8),
}
"""H, HKV, D, R; DFlash is a drafter"""
WINDOW = 2048
COPY = r"cp\.async\.c\S+ \[[^]]*\], \[[^]]*\], (0x\w+)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One kernel at one shape."""

    kernel: str
    shape: str
    view: str
    warps: int
    registers: int
    spilled_bytes: int
    strays: int
    """a thread's stack and local memory"""
    shared_bytes: int
    products: list[str]
    """kinds of tensor-core instructions"""
    copied_bytes: list[int]
    """widths of asynchronous copies into shared memory"""


def recorded(run: Callable[[], object]) -> Iterator[tuple[triton.JITFunction, dict[str, object]]]:
    """Every kernel that `run` launches, with all its arguments."""
    recorders = {name: gdn_compile.Recorder(getattr(attention, name)) for name in KERNELS}
    with patch.multiple(attention, overlaps=lambda device: True, **recorders):
        run()
    for recorder in recorders.values():
        for launch in recorder.launches:
            yield recorder.kernel, launch


def runs(shape: str, dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is launched at a shape."""
    H, HKV, D, R = SHAPES[shape]

    def empty(*size: int) -> torch.Tensor:
        return torch.empty(size, dtype=dtype)

    norm, rotary = empty(D), torch.empty(256, 2, R // 2)
    keys = empty(1, 2, HKV, PAGE, D)
    count = torch.ones((), dtype=torch.int32)
    if shape != "DFlash":
        rows = empty(16, (2 * H + 2 * HKV) * D)
        cache = (norm, norm, 1e-6, rotary, keys[0], keys[0], count, count)
        yield "gated", lambda: attention.attend_gated(rows, *cache)
        return
    rows = empty(16, (H + 2 * HKV) * D)
    cache = (norm, norm, 1e-6, rotary, keys[0], keys[0], count, count)
    for view, window, is_causal in (("full", None, False), ("sliding", WINDOW, True)):
        yield (
            view,
            lambda window=window, is_causal=is_causal: attention.attend_block(
                rows, *cache, window=window, is_causal=is_causal
            ),
        )
    context = empty(16, 1, 2 * HKV * D)
    yield (
        "context",
        lambda: attention.write_context(
            context, norm[None], 1e-6, rotary, keys, keys, count, count
        ),
    )


def compiled(shape: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[Compiled]:
    """Each kernel of one shape."""
    for view, run in runs(shape, dtype):
        for kernel, launch in recorded(run):
            binary, options = gdn_compile.compile_launch(kernel, launch)
            ptx = binary.asm["ptx"]
            registers, spilled, stray = gdn_compile.resources(binary.asm["cubin"])
            yield Compiled(
                kernel=kernel.__name__.removesuffix("_kernel"),
                shape=shape,
                view=view,
                warps=options["num_warps"],
                registers=registers,
                spilled_bytes=spilled,
                strays=stray,
                shared_bytes=binary.metadata.shared,
                products=sorted(set(re.findall(r"(wgmma|\bmma)(?:\.mma_async)?\.sync", ptx))),
                copied_bytes=sorted({int(x, 16) for x in re.findall(COPY, ptx)}),
            )


def main() -> int:
    """0 if every kernel fits without spilling."""
    found = [kernel for shape in SHAPES for kernel in compiled(shape)]
    for kernel in found:
        print(asdict(kernel), flush=True)
    fits = (not one.spilled_bytes and one.shared_bytes <= gdn_compile.SHARED_LIMIT for one in found)
    return int(not all(fits))


if __name__ == "__main__":
    sys.exit(main())
