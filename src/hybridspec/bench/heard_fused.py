# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The same of the forward in launches; needs Triton.

All its layers write their ids to one tensor, so that each layer's are copied as it is routed.
"""

from dataclasses import dataclass, field, fields

from torch import Tensor

from hybridspec.models.fused import FusedMoe, FusedTarget, Walk


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardFusedTarget(FusedTarget):
    """A FusedTarget, and what was heard while it read. Not to be captured."""

    heard: list[Tensor] = field(default_factory=list[Tensor])
    """[MAX_ROWS, k] int32 a layer with a router, of the passes since it was last cleared"""

    @classmethod
    def listening(cls, target: FusedTarget) -> "HeardFusedTarget":
        """The same weights and buffers."""
        return cls(**{own.name: getattr(target, own.name) for own in fields(FusedTarget)})

    def _route(self, number: int, moe: FusedMoe, walk: Walk) -> None:
        FusedTarget._route(self, number, moe, walk)  # slots: super() finds no class
        self.heard.append(self.buffers.routings[number].ids.clone())
