# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Where exact and fast mode part: one table of operations each.

Everything else is shared. Exact keeps one shape and one order of summation for every row; fast
takes whatever is quickest for the rows at hand.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hybridspec.core.options import MAX_ROWS, Mode
from hybridspec.kernels.reference import experts, gdn


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What a mode decides."""

    width: Callable[[int], int]
    """rows that the buffers hold when so many are read; those beyond are zero"""
    gdn_verify: Callable[..., Tensor]
    """contract of kernels.reference.gdn.verify_exact"""
    experts: Callable[..., Tensor]
    """contract of kernels.reference.experts.experts"""


def of_mode(mode: Mode) -> Operations:
    """The table of a mode."""
    return _EXACT if mode == "exact" else _FAST


def _fast_verify(*arguments: object) -> Tensor:
    """One row is quicker as a step than as a block of one."""
    rows = arguments[-1]
    return (gdn.verify_exact if rows == 1 else gdn.verify_block)(*arguments)  # pyright: ignore


def _fast_experts(x: Tensor, *rest: Tensor) -> Tensor:
    few = experts.experts_of_one_row if x.shape[0] == 1 else experts.experts_of_few_rows
    return few(x, *rest)


_EXACT = Operations(
    width=lambda rows: MAX_ROWS, gdn_verify=gdn.verify_exact, experts=experts.experts
)
_FAST = Operations(width=lambda rows: rows, gdn_verify=_fast_verify, experts=_fast_experts)
