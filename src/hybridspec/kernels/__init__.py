# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Floor 2: the operations of a decode step, one a file.

`kernels/reference` holds each in plain PyTorch. Twins in Triton share file name and signature; they
are imported only where there is Triton. `of` is the only place where a device picks one of the two.
"""

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from hybridspec.kernels.reference.accept import Ledger
from hybridspec.kernels.reference.acceptance import AcceptanceState
from hybridspec.kernels.reference.clock import Clock
from hybridspec.kernels.reference.correction import Correction
from hybridspec.kernels.reference.length import LengthState, LengthTables

log = logging.getLogger("hybridspec")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOperations:
    """What a round and its policy call, each with the contract of the reference."""

    settle: Callable[[Tensor, Tensor, Tensor, Tensor, Ledger], None]
    choose: Callable[
        [Tensor, LengthTables, LengthState, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]
    ]
    correct: Callable[[Tensor, Tensor, Tensor, LengthTables, LengthState, Correction], Tensor]
    begin: Callable[[Clock], None]
    learn: Callable[
        [
            Tensor,
            Tensor,
            Tensor,
            Ledger,
            LengthState,
            AcceptanceState | None,
            Clock | None,
            Correction | None,
        ],
        None,
    ]


def of(device: torch.device) -> RoundOperations:
    """Triton's on CUDA, PyTorch's on a CPU and where there is no Triton."""
    return _of_type(device.type)


@cache
def _of_type(device: str) -> RoundOperations:
    is_triton = device == "cuda"
    if is_triton and importlib.util.find_spec("triton") is None:
        log.warning("There is no Triton: rounds on %s settle in PyTorch, and wait for it.", device)
        is_triton = False
    if is_triton:
        from hybridspec.kernels import accept, clock, correction, learning, length
    else:
        from hybridspec.kernels.reference import accept, clock, correction, learning, length
    return RoundOperations(
        settle=accept.settle,
        choose=length.choose,
        correct=correction.correct,
        begin=clock.begin,
        learn=learning.learn,
    )
