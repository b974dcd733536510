# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Seconds of a round by rows: measured, monotone, and kept in a readable file."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from hybridspec.core.errors import TableError
from hybridspec.policy.tables import check_key, numbers, read_table, write_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """T(n, c): seconds of drafting and verifying n rows at context c."""

    seconds: Mapping[int, tuple[float, ...]]
    """by context: seconds of 1, 2, ... rows, never falling"""

    @classmethod
    def measured(cls, seconds: Mapping[int, list[float]]) -> "Latency":
        """From raw medians; where fewer rows cost more than more, that is noise: flattened up."""
        return cls(seconds={c: tuple(accumulate(row, max)) for c, row in sorted(seconds.items())})

    @classmethod
    def load(cls, path: Path, *, key: Mapping[str, str], rows: int) -> "Latency":
        """Read `latency.json`; raises TableError if it is damaged or belongs to something else."""
        table = read_table(path)
        check_key(path, table, key)
        found: dict[str, object] = table.get("seconds") or {}
        if not isinstance(found, dict) or not found or not all(c.isdecimal() for c in found):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TableError(f"{path}: 'seconds' must map contexts to lists of seconds.")
        seconds = {int(c): numbers(path, row, at_least=1e-9) for c, row in found.items()}
        for context, row in seconds.items():
            if len(row) != rows:
                raise TableError(
                    f"{path}: {len(row)} timings at context {context}, the block has {rows} rows."
                )
        return cls.measured(seconds)

    def save(self, path: Path, *, key: Mapping[str, str]) -> None:
        """Write `latency.json`."""
        seconds = {str(c): list(row) for c, row in self.seconds.items()}
        write_table(path, {"key": dict(key), "seconds": seconds})

    def at(self, context: int, device: torch.device | None = None) -> Tensor:
        """T(1..block, context) [block] float32: linear between measured contexts, flat outside."""
        contexts = list(self.seconds)
        place = bisect_right(contexts, context)
        low, high = contexts[max(place - 1, 0)], contexts[min(place, len(contexts) - 1)]
        share = 0.0 if low == high else (context - low) / (high - low)
        pairs = zip(self.seconds[low], self.seconds[high], strict=True)
        return torch.tensor([a + share * (b - a) for a, b in pairs], device=device)
