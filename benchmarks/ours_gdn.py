# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""HybridSpec's Gated DeltaNet kernels as arms of gdn_verify.py: block form and exact.

Inputs lie in the records, where an engine's projection writes them. Their convolution is fused, so
the scope `delta`, which starts behind it, is not theirs.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from gated_norm import gated_rms_norm
from gdn_problem import EPS, Arm, Problem
from torch import Tensor

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import gdn
from hybridspec.kernels.reference.gdn import GdnRecords, GdnState, GdnWeights, part


class Ours(ABC):
    """States, records and weights of all layers."""

    name: ClassVar[str]
    state_tolerance = 1e-4

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.mixed = None
        self.y: list[Tensor] = []
        p, s = problem, problem.shape
        self.memory = p.normal(p.layers, p.batch, s.HV, s.V, s.K, scale=0.1, dtype=torch.float32)
        self.past = p.normal(p.layers, p.batch, s.CONV - 1, s.channels)
        self.touched = self.memory.numel() * 4
        self.counts = torch.full((p.batch,), p.rows, dtype=torch.int32, device=p.device)
        self.weights = [
            GdnWeights(
                conv=layer.conv.T.contiguous(),
                decay_rate=layer.A_log.exp(),
                dt_bias=layer.dt_bias,
            )
            for layer in p.weights
        ]
        self.gates = [(self._padded(layer.a), self._padded(layer.b)) for layer in p.weights]
        self.z = [self._padded(layer.z) for layer in p.weights]
        lead = (p.layers, p.batch, MAX_ROWS)
        self.records = GdnRecords(
            inputs=torch.stack([self._padded(layer.qkv) for layer in p.weights]),
            keys=self._empty(*lead, s.H, s.K),
            updates=self._empty(*lead, s.HV, s.V),
            log_decays=self._empty(*lead, s.HV),
        )

    def round(self) -> None:
        """Enqueue all layers, one after another, and the commit."""
        self.y = []
        for index in range(self.problem.layers):
            y = self.verify(index)
            if self.problem.scope == "whole+norm":
                y = gated_rms_norm(y, self.z[index], self.problem.weights[index].norm, EPS)
            self.y.append(y[:, : self.problem.rows])
        self.commit()

    @abstractmethod
    def verify(self, index: int) -> Tensor:
        """[B, MAX_ROWS, HV, V] of one layer."""

    @abstractmethod
    def commit(self) -> None:
        """All layers' accepted states."""

    def arguments(self, index: int) -> tuple[Tensor, Tensor, Tensor, GdnWeights, GdnState]:
        """Of one layer, up to its state."""
        state = GdnState(conv=self.past[index], recurrent=self.memory[index].mT)
        return self.records.inputs[index], *self.gates[index], self.weights[index], state

    def records_of(self, index: int) -> GdnRecords:
        """Of one layer."""
        return part(self.records, index)

    def recurrent(self, layer: int, sequence: int) -> Tensor:
        """[HV, K, V]."""
        return self.memory[layer, sequence].mT

    def conv(self, layer: int, sequence: int) -> Tensor:
        """[CONV - 1, C]."""
        return self.past[layer, sequence]

    def _padded(self, rows: Tensor) -> Tensor:
        """[B N, ...] -> [B, MAX_ROWS, ...], stale beyond N."""
        p = self.problem
        padded = p.normal(p.batch, MAX_ROWS, *rows.shape[1:])
        padded[:, : p.rows] = rows.view(p.batch, p.rows, *rows.shape[1:])
        return padded

    def _empty(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.problem.device)


class OursBlock(Ours):
    """One launch a layer, one for the commit of all."""

    name = "ours-block"

    def verify(self, index: int) -> Tensor:
        return gdn.verify_block(*self.arguments(index), self.records_of(index), self.counts)

    def commit(self) -> None:
        gdn.commit_block(self.past, self.memory.mT, self.records, self.problem.accepted_rows)


class OursExact(Ours):
    """Two launches a layer, one for the commit of all; plain decoding is this at one row."""

    name = "ours-exact"

    def verify(self, index: int) -> Tensor:
        return gdn.verify_exact(*self.arguments(index), self.records_of(index), self.counts)

    def commit(self) -> None:
        gdn.commit(self.past, self.memory.mT, self.records, self.problem.accepted_rows)


ARMS: dict[str, type[Arm]] = {arm.name: arm for arm in (OursBlock, OursExact)}
