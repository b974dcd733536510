# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a pair takes of its device's memory, known before a number of it is read.

There are no formulas. The models are built on the meta device by the code that loads them, from
configurations and the headers of files alone, and so are the states of a request; what those
tensors would hold is counted. So an estimate cannot part from what is allocated.

What a reader gets wrong: a head that stands in the file beside a tied embedding is counted twice,
for nobody has compared the two yet.
"""

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from hybridspec.core.device import describe
from hybridspec.core.errors import OptionError

if TYPE_CHECKING:
    from hybridspec.models.dflash import Drafter
    from hybridspec.models.fused import FusedTarget
    from hybridspec.models.fused_draft import FusedDrafter
    from hybridspec.models.target import Target

WORKSPACE = {"cuda": 1 << 30, "cpu": 1 << 28}
"""bytes allowed by device type for all that is not counted: a piece of a prompt on its way, scratch
of launches, recorded graphs. On CUDA a chunk of a prompt takes 0.95 GiB of it at the 35B's shape
(results/prefill_time.json); the rest is a guess"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A pair in outline, and what it takes."""

    target: "Target | FusedTarget"
    drafter: "Drafter | FusedDrafter | None"
    device: torch.device

    @property
    def positions(self) -> int:
        """Most positions that a request of this target may take."""
        return self.target.config.max_position_embeddings + 1

    def weights(self) -> dict[str, int]:
        """Bytes that stay while a pair is loaded, by what they are for."""
        seen = set[int]()
        buffers = [getattr(self.target, "buffers", None)]
        buffers += [getattr(self.drafter, name, None) for name in ("tokens", "rows", "stream")]
        found = {"buffers": held_bytes(buffers, seen)}
        found["target weights"] = held_bytes(self.target, seen)
        found["drafter weights"] = held_bytes(self.drafter, seen)
        return found

    def request(self, positions: int) -> dict[str, int]:
        """Bytes of one request that takes so many positions, by what they are for."""
        state = self.target.empty_state(positions)
        draft = None if self.drafter is None else self.drafter.empty_state(positions)
        return {
            "keys and values": held_bytes([state.keys, state.values]),
            "GDN states": held_bytes([state.length, state.conv, state.recurrent]),
            "GDN records": held_bytes(state.records),
            "drafter's context": held_bytes(draft),
        }

    def loading(self) -> int:
        """Most bytes beside the weights while they are loaded: a layer or an embedding once more.

        The embedding is what a head, or a drafter's copy, is compared with.
        """
        return max(map(held_bytes, (*self.target.layers, self.target.embedding)))

    def parts(self, positions: int) -> dict[str, int]:
        """All that is held at work, by what it is for."""
        allowed = {"workspace": WORKSPACE[self.device.type]}
        return self.weights() | self.request(positions) | allowed

    def needed(self, positions: int, *, is_loaded: bool = False) -> int:
        """Bytes that must be free for so many positions, before loading or after it."""
        request = sum(self.request(positions).values())
        if is_loaded:
            return request
        at_work = request + WORKSPACE[self.device.type]
        return sum(self.weights().values()) + max(at_work, self.loading())

    def longest(self, free: int, *, is_loaded: bool = False) -> int:
        """Most positions for which `free` bytes are enough; 0 if they are for none."""
        fits, beyond = 0, self.positions + 1
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            if self.needed(middle, is_loaded=is_loaded) <= free:
                fits = middle
            else:
                beyond = middle
        return fits

    def check(self, positions: int, free: int | None, *, is_loaded: bool = False) -> None:
        """Raise OptionError unless so many positions fit; free: bytes, None if nobody knows."""
        positions = min(positions, self.positions)
        needed = self.needed(positions, is_loaded=is_loaded)
        if free is None or needed <= free:
            return
        longest = self.longest(free, is_loaded=is_loaded)
        weights = (
            "" if is_loaded else f", {gibibytes(sum(self.weights().values()))} of them weights"
        )
        way_out = (
            f"take a context (prompt and new tokens) of {longest} positions or less."
            if longest
            else "not the shortest context fits: free some, or take a device with more memory."
        )
        raise OptionError(
            f"{positions} positions need {gibibytes(needed)} of memory{weights}; "
            f"{gibibytes(free)} are free on {describe(self.device)}: {way_out}"
        )


def held_bytes(value: Any, seen: set[int] | None = None) -> int:
    """Bytes of all tensors in a record, each storage once; seen: storages counted already."""
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        if storage._cdata in seen:  # pyright: ignore[reportPrivateUsage]
            return 0
        seen.add(storage._cdata)  # pyright: ignore[reportPrivateUsage]
        return storage.nbytes()
    if isinstance(value, list | tuple):
        return sum(held_bytes(part, seen) for part in cast("list[Any]", value))
    if is_dataclass(value):
        return sum(held_bytes(getattr(value, field.name), seen) for field in fields(value))
    return 0


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be had on a device; None where the system does not tell."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def gibibytes(size: int) -> str:
    """Bytes as a table and a message show them."""
    return f"{size / 2**30:.2f} GiB"
