# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A plain target that keeps which experts every layer's router chose."""

from dataclasses import dataclass, field, fields

from torch import Tensor

from hybridspec.models.target import Moe, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardTarget(Target):
    """A Target, and what was heard while it read."""

    heard: list[Tensor] = field(default_factory=list[Tensor])
    """[N, k] int64 a layer with a router, of the passes since it was last cleared"""

    @classmethod
    def listening(cls, target: Target) -> "HeardTarget":
        """The same weights."""
        return cls(**{own.name: getattr(target, own.name) for own in fields(Target)})

    def _route(self, moe: Moe, normed: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        ids, weights = Target._route(self, moe, normed, rows)  # slots: super() finds no class
        self.heard.append(ids)
        return ids, weights
