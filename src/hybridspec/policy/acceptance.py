# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Coefficients of how likely each draft is to be right, from the drafter's own log-odds.

p_j = sigmoid(slope f_j + intercept_j): one slope for all positions, an intercept for each, because
how often a draft is right given that the ones before it were depends on its place more than its
confidence shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hybridspec.core.errors import TableError
from hybridspec.policy.tables import check_key, numbers, read_table, write_table

LARGEST = 1e3
"""of a coefficient; a table beyond is damaged"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Coefficients of one target and drafter."""

    slope: float
    """at least 0"""
    intercepts: tuple[float, ...]
    """one a draft position"""
    is_informed: bool = True
    """from labels, not the drafter's word"""

    @classmethod
    def uninformed(cls, drafts: int) -> "Acceptance":
        """For a pair without coefficients: the drafter's own confidence, taken at its word."""
        return cls(slope=1.0, intercepts=(0.0,) * drafts, is_informed=False)

    @classmethod
    def load(cls, path: Path, *, key: Mapping[str, str], drafts: int) -> "Acceptance":
        """Read `acceptance.json`; raises TableError if it is damaged or belongs to another pair."""
        table = read_table(path)
        check_key(path, table, key)
        intercepts = numbers(path, table.get("intercepts"), at_least=-LARGEST, at_most=LARGEST)
        if len(intercepts) != drafts:
            raise TableError(
                f"{path} has {len(intercepts)} intercepts, the drafter drafts {drafts} tokens."
            )
        slope = numbers(path, [table.get("slope")], at_least=0, at_most=LARGEST)[0]
        return cls(slope=slope, intercepts=tuple(intercepts))

    def save(self, path: Path, *, key: Mapping[str, str]) -> None:
        """Write `acceptance.json`."""
        coefficients = {"slope": self.slope, "intercepts": list(self.intercepts)}
        write_table(path, {"key": dict(key), **coefficients})
