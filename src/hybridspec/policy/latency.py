# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Seconds of a drafted round by rows, and of a plain step: measured, and kept in a file."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean
from typing import cast

from hybridspec.core.errors import TableError, shown
from hybridspec.policy.routing import RoutingCosts
from hybridspec.policy.tables import check_key, numbers, read_table, write_table

PARTS = {"draft", "commit"}
"""optional fields of the file, for its reader"""
LONGEST = 1e6
"""seconds of a round; a table beyond is damaged"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """T(n, c): seconds of drafting and verifying n rows at context c."""

    seconds: Mapping[int, tuple[float, ...]]
    """by context: seconds of 1, 2, ... rows, never falling"""
    plain: Mapping[int, float]
    """by the same contexts: seconds of a plain step"""
    routing: RoutingCosts | None = None
    """prices of a row beyond those chosen, if they were measured"""
    draft: Mapping[int, float] | None = None
    """by the same contexts: seconds of the draft alone; no choice reads them"""
    commit: Mapping[int, float] | None = None
    """by the same contexts: seconds of committing a whole block; no choice reads them"""

    @classmethod
    def measured(
        cls,
        seconds: Mapping[int, list[float]],
        *,
        plain: Mapping[int, float],
        routing: RoutingCosts | None = None,
        draft: Mapping[int, float] | None = None,
        commit: Mapping[int, float] | None = None,
    ) -> "Latency":
        """From raw medians; where fewer rows cost more than more, that is noise: pooled."""
        rising = {c: _never_falling(row) for c, row in sorted(seconds.items())}
        return cls(
            seconds=rising,
            plain=dict(sorted(plain.items())),
            routing=routing,
            draft=None if draft is None else dict(sorted(draft.items())),
            commit=None if commit is None else dict(sorted(commit.items())),
        )

    @classmethod
    def load(cls, path: Path, *, key: Mapping[str, str], rows: int) -> "Latency":
        """Read `latency.json`; raises TableError if it is damaged or belongs to something else."""
        table = read_table(path)
        check_key(path, table, key)
        _check_names(path, table)
        found: dict[str, object] = table.get("seconds") or {}
        if not isinstance(found, dict) or not found or not all(map(_is_context, found)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TableError(f"{path}: 'seconds' must map contexts to lists of seconds.")
        seconds = {
            int(c): numbers(path, row, at_least=1e-9, at_most=LONGEST) for c, row in found.items()
        }
        if list(seconds) != sorted(seconds) or len(seconds) < len(found):
            raise TableError(f"{path}: contexts must rise, got {', '.join(found)}.")
        for context, row in seconds.items():
            if len(row) != rows:
                raise TableError(
                    f"{path}: {len(row)} timings at context {context}, the block has {rows} rows."
                )
        one = {name: _by_context(path, name, table[name], seconds) for name in PARTS & set(table)}
        return cls.measured(
            seconds,
            plain=_by_context(path, "plain", table.get("plain"), seconds),
            routing=_routing(path, table.get("routing")),
            draft=one.get("draft"),
            commit=one.get("commit"),
        )

    def save(self, path: Path, *, key: Mapping[str, str]) -> None:
        """Write `latency.json`."""
        write_table(path, {"key": dict(key), **self.to_json()})

    def to_json(self) -> dict[str, object]:
        """The table without its key."""
        table: dict[str, object] = {
            "seconds": {str(c): list(row) for c, row in self.seconds.items()},
            "plain": {str(c): seconds for c, seconds in self.plain.items()},
        }
        for name in sorted(PARTS):
            if (part := getattr(self, name)) is not None:
                table[name] = {str(c): seconds for c, seconds in part.items()}
        return table if self.routing is None else table | {"routing": asdict(self.routing)}

    @property
    def block_size(self) -> int:
        """Rows of the longest round."""
        return len(next(iter(self.seconds.values())))

    def drafted_at(self, context: int, *, rows: int) -> float:
        """Seconds of a drafted round: linear between measured contexts, flat outside."""
        return self._between(context, lambda measured: self.seconds[measured][rows - 1])

    def plain_at(self, context: int) -> float:
        """Seconds of a plain step, found likewise."""
        return self._between(context, lambda measured: self.plain[measured])

    def _between(self, context: int, seconds: Callable[[int], float]) -> float:
        contexts = list(self.seconds)
        place = bisect_right(contexts, context)
        low, high = contexts[max(place - 1, 0)], contexts[min(place, len(contexts) - 1)]
        share = 0.0 if low == high else (context - low) / (high - low)
        return seconds(low) + share * (seconds(high) - seconds(low))


def _never_falling(row: list[float]) -> tuple[float, ...]:
    """The never-falling row nearest to `row` in squares, by pooling neighbours that fall."""
    pools: list[list[float]] = []
    for seconds in row:
        pools.append([seconds])
        while len(pools) > 1 and mean(pools[-2]) > mean(pools[-1]):
            last = pools.pop()
            pools[-1].extend(last)
    return tuple(mean(pool) for pool in pools for _ in pool)


def _is_context(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _check_names(path: Path, table: Mapping[str, object]) -> None:
    known = {"key", "seconds", "plain", "routing"} | PARTS
    if unknown := sorted(set(table) - known):
        raise TableError(
            f"{path}: {unknown[0]!r} is unknown; a table holds {', '.join(sorted(known))}."
        )


def _by_context(
    path: Path, name: str, found: object, contexts: Mapping[int, object]
) -> dict[int, float]:
    wanted = [str(context) for context in contexts]
    if not isinstance(found, dict) or sorted(cast("dict[str, object]", found)) != sorted(wanted):
        raise TableError(f"{path}: '{name}' must map the contexts of 'seconds' to seconds.")
    values = [cast("dict[str, object]", found)[context] for context in wanted]
    return dict(zip(contexts, numbers(path, values, at_least=1e-9, at_most=LONGEST), strict=True))


def _routing(path: Path, prices: object) -> RoutingCosts | None:
    if prices is None:
        return None
    names = [field.name for field in fields(RoutingCosts)]
    if not isinstance(prices, dict) or sorted(cast("dict[str, object]", prices)) != sorted(names):
        raise TableError(
            f"{path}: 'routing' must hold {', '.join(names)}; got {shown(cast('object', prices))}."
        )
    listed = [cast("dict[str, object]", prices)[name] for name in names]
    found = dict(zip(names, numbers(path, listed, at_least=0, at_most=LONGEST), strict=True))
    layers = found.pop("layers")
    if layers < 1 or layers % 1:
        raise TableError(f"{path}: layers must be a whole number of at least 1, got {layers:g}.")
    try:
        return RoutingCosts(layers=int(layers), **found)
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
