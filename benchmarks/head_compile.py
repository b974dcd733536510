# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Compile the head's kernels for sm_90, no GPU needed: registers, spills, shared memory by launch.

    python benchmarks/head_compile.py

Shape and dtype of Qwen3.6-35B-A3B. TRITON_INTERPRET must not be set.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from unittest.mock import patch

import torch

from benchmarks.gdn_compile import SHARED_LIMIT, compile_launch, recorded, resources
from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import head
from hybridspec.kernels.head import HeadLaunch

V, D, PARTS = 248320, 2048, 16
CANDIDATES = tuple(
    HeadLaunch(
        words=words, depth=depth, stages=stages, warps=warps, is_transposed=left, prefetched=2
    )
    for left, words, depth, stages, warps in itertools.product(
        (True, False), (64, 128), (64, 128), (3, 4), (4, 8)
    )
    if words * depth * stages <= 128 * 128 * 3 and not (words == 64 and warps == 8)
)


def compiled(launch: HeadLaunch) -> Iterator[dict[str, object]]:
    """The four kernels of a launch: tiles and reduction, of the target and of the drafter."""
    x = torch.empty(MAX_ROWS, D, dtype=torch.bfloat16, device="meta")
    squares = torch.empty(PARTS, MAX_ROWS, device="meta")
    weight = torch.empty(V, D, dtype=torch.bfloat16, device="meta")
    rows = torch.empty((), dtype=torch.int32, device="meta")

    def run() -> None:
        head.read_head_scaled(x, squares, weight, rows, 1e-6)
        head.draft_head_scaled(x, squares, weight, rows, 248077, 1e-6)

    with patch.object(head, "HEAD", launch):
        launches = list(recorded(run, head, ("_tile_kernel", "_reduce_kernel")))
    for kernel, arguments in launches:
        binary, options = compile_launch(kernel, arguments)
        registers, spilled = resources(binary.asm["cubin"])
        yield {
            "kernel": kernel.__name__,
            "is_draft": arguments["IS_DRAFT"],
            "warps": options["num_warps"],
            "registers": registers,
            "spilled_bytes": spilled,
            "shared_bytes": binary.metadata.shared,
            "takes_warp_groups": "wgmma.mma_async" in binary.asm["ptx"],
            "copies_ahead": "cp.async" in binary.asm["ptx"],
        }


def main() -> int:
    """0 if every kernel fits without spills."""
    fits = True
    for launch in CANDIDATES:
        for one in compiled(launch):
            if one["kernel"] == "_reduce_kernel" and launch != CANDIDATES[0]:
                continue
            print(json.dumps({"launch": repr(launch), **one}), flush=True)
            fits &= not one["spilled_bytes"] and one["shared_bytes"] <= SHARED_LIMIT
    return int(not fits)


if __name__ == "__main__":
    sys.exit(main())
