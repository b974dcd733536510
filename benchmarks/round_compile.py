# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Compile the kernels of head, acceptance and policy for sm_90, no GPU needed.

    python -m benchmarks.round_compile

Prints registers, spills and shared memory, of the head by launch. Shape and dtype of
Qwen3.6-35B-A3B. TRITON_INTERPRET must not be set.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from unittest.mock import patch

import torch

from benchmarks.gdn_compile import SHARED_LIMIT, compile_launch, recorded, resources
from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import accept, clock, correction, head, learning, length
from hybridspec.kernels.head import HeadLaunch
from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.kernels.reference.clock import Clock
from hybridspec.kernels.reference.correction import Correction
from hybridspec.kernels.reference.exploration import Exploration
from hybridspec.kernels.reference.length import LengthState, LengthTables
from hybridspec.kernels.reference.stream import TILE

V, D, MASK = 248320, 2048, 248077
CANDIDATES = tuple(
    HeadLaunch(words=words, depth=depth, stages=stages, warps=warps, is_transposed=left)
    for left, words, depth, stages, warps in itertools.product(
        (True, False), (64, 128), (64, 128), (3, 4), (4, 8)
    )
    if words * depth * stages <= 128 * 128 * 3 and not (words == 64 and warps == 8)
)


def run_head() -> None:
    """Read and draft, without memory behind the tensors."""
    x = torch.empty(MAX_ROWS, D, dtype=torch.bfloat16, device="meta")
    squares = torch.empty(MAX_ROWS, D // TILE, device="meta")
    weight = torch.empty(V, D, dtype=torch.bfloat16, device="meta")
    rows = torch.empty((), dtype=torch.int32, device="meta")
    head.read_head_scaled(x, squares, weight, rows, 1e-6)
    head.draft_head_scaled(x, squares, weight, rows, MASK, 1e-6)


def run_accept() -> None:
    """settle, with two stop ids."""
    tokens, one = torch.zeros(MAX_ROWS, dtype=torch.int64), torch.ones((), dtype=torch.int32)
    ledger = Ledger.opened(tokens[0], length=one.clone(), budget=1, slots=8)
    accept.settle(tokens, tokens, one, tokens[:2], ledger)


def run_length() -> None:
    """choose, of eight contexts."""
    one = torch.ones((), dtype=torch.int32)
    tables = LengthTables(
        slope=torch.ones(()),
        intercepts=torch.zeros(MAX_ROWS - 1),
        contexts=torch.arange(8, dtype=torch.int32),
        seconds=torch.ones(8, MAX_ROWS),
        clock=Clock.empty(MAX_ROWS, "cpu"),
        exploration=Exploration.empty("cpu"),
    )
    state = LengthState.empty(MAX_ROWS, "cpu")
    is_done = torch.zeros((), dtype=torch.bool)
    length.choose(torch.zeros(MAX_ROWS - 1), tables, state, one, one, is_done)


def run_correction() -> None:
    """correct, with eight experts a row; the list of experts has int32 on a GPU."""
    one = torch.ones((), dtype=torch.int32)
    tables = LengthTables(
        slope=torch.ones(()),
        intercepts=torch.zeros(MAX_ROWS - 1),
        contexts=torch.zeros(1, dtype=torch.int32),
        seconds=torch.ones(1, MAX_ROWS),
        above=2,
        exploration=Exploration.empty("cpu"),
    )
    state = LengthState.empty(MAX_ROWS, "cpu")
    known = Correction.empty(below=2, above=2, device="cpu")
    ids = torch.zeros(MAX_ROWS, 8, dtype=torch.int32)
    correction.correct(ids, one, one, tables, state, known)


def run_learning() -> None:
    """All parts."""
    one, drafts = torch.ones((), dtype=torch.int32), MAX_ROWS - 1
    ledger = Ledger.closed(length=one.clone(), slots=8)
    learning.learn(
        torch.zeros(drafts),
        one,
        one,
        ledger,
        LengthState.empty(MAX_ROWS, "cpu"),
        AcceptanceState.begun(1.0, (0.0,) * drafts, warm_up=0, device=torch.device("cpu")),
        Clock.empty(MAX_ROWS, "cpu"),
        Correction.empty(below=2, above=2, device="cpu"),
    )


def run_clock() -> None:
    """begin."""
    clock.begin(Clock.empty(MAX_ROWS, "cpu"))


def compiled(
    run: Callable[[], None], module: ModuleType, names: tuple[str, ...]
) -> Iterator[dict[str, object]]:
    """Every launch of those kernels that `run` makes."""
    for kernel, arguments in list(recorded(run, module, names)):
        binary, options = compile_launch(kernel, arguments)
        registers, spilled, stray = resources(binary.asm["cubin"])
        yield {
            "kernel": kernel.__name__.strip("_").removesuffix("_kernel"),
            "is_draft": arguments.get("IS_DRAFT"),
            "warps": options["num_warps"],
            "registers": registers,
            "spilled_bytes": spilled,
            "strays": stray,
            "shared_bytes": binary.metadata.shared,
            "has_warp_groups": "wgmma.mma_async" in binary.asm["ptx"],
            "copies_ahead": "cp.async" in binary.asm["ptx"],
        }


def as_shipped() -> Iterator[dict[str, object]]:
    """Every kernel with the launch that its file names."""
    yield from compiled(run_head, head, ("_tile_kernel", "_reduce_kernel"))
    yield from compiled(run_accept, accept, ("_settle_kernel",))
    yield from compiled(run_length, length, ("_choose_kernel",))
    yield from compiled(run_correction, correction, ("_correct_kernel",))
    yield from compiled(run_learning, learning, ("learn_kernel",))
    yield from compiled(run_clock, clock, ("_begin_kernel",))


def candidates() -> Iterator[dict[str, object]]:
    """The head's tiles by launch."""
    for launch in CANDIDATES:
        with patch.object(head, "HEAD", launch):
            for one in compiled(run_head, head, ("_tile_kernel", "_reduce_kernel")):
                if one["kernel"] == "tile":
                    yield {"launch": repr(launch), **one}


def main() -> int:
    """0 if every kernel fits without spills and parts no warp."""
    fits = True
    for one in itertools.chain(as_shipped(), candidates()):
        print(json.dumps(one), flush=True)
        fits &= one["spilled_bytes"] == one["strays"] == 0
        fits &= int(str(one["shared_bytes"])) <= SHARED_LIMIT
    return int(not fits)


if __name__ == "__main__":
    sys.exit(main())
