# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Muon for matrices and Adam for the rest, in few launches and without a host decision.

Equal-shaped matrices (all experts of all layers) are orthogonalised as one batch; the learning rate
is a device scalar, so that a whole step may be captured in a CUDA graph. Muon:
https://kellerjordan.github.io/posts/muon, Newton-Schulz coefficients from there.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrix of each, by Newton-Schulz in bf16; matrices [n, r, c]."""
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.bfloat16)
    flip = x.shape[1] > x.shape[2]
    x = x.mT if flip else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if flip else x


@dataclass(slots=True, kw_only=True)
class Optimiser:
    """Updates the given parameters in place from a list of gradients in the same order."""

    params: list[Tensor]
    is_matrix: list[bool]
    """True: Muon, over the last two dimensions."""
    adam_lr: list[float]
    """Peak rate of each parameter where is_matrix is False."""
    muon_lr: float
    weight_decay: float = 0.1
    """Muon's only."""
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    scale: Tensor = field(init=False)
    """Device scalar 0..1 that multiplies every rate: the schedule."""
    first: list[Tensor] = field(init=False)
    second: list[Tensor] = field(init=False)
    steps: Tensor = field(init=False)
    shapes: dict[tuple[int, int], list[int]] = field(init=False)

    def __post_init__(self) -> None:
        device = self.params[0].device
        self.scale = torch.zeros((), device=device)
        self.steps = torch.zeros((), device=device)
        self.first = [torch.zeros_like(p) for p in self.params]
        self.second = [
            torch.empty(0) if m else torch.zeros_like(p)
            for p, m in zip(self.params, self.is_matrix, strict=True)
        ]
        self.shapes = defaultdict(list)
        for place, (param, matrix) in enumerate(zip(self.params, self.is_matrix, strict=True)):
            if matrix:
                self.shapes[tuple(param.shape[-2:])].append(place)

    @torch.no_grad()
    def step(self, grads: list[Tensor]) -> None:
        """One update; scale must hold the schedule's value."""
        for (rows, cols), places in self.shapes.items():
            self._muon([grads[i] for i in places], places, max(1.0, rows / cols) ** 0.5)
        places = [i for i, m in enumerate(self.is_matrix) if not m]
        self._adam([grads[i] for i in places], places)

    def _muon(self, grads: list[Tensor], places: list[int], gain: float) -> None:
        params = [self.params[i] for i in places]
        moments = [self.first[i] for i in places]
        torch._foreach_lerp_(moments, grads, 1 - self.momentum)
        updates = torch._foreach_lerp(grads, moments, self.momentum)
        rows, cols = params[0].shape[-2:]
        stacked = torch.cat([u.reshape(-1, rows, cols) for u in updates])
        directions = orthogonalised(stacked).float() * (-self.muon_lr * gain * self.scale)
        parts = directions.split([p.numel() // (rows * cols) for p in params])
        torch._foreach_mul_(params, 1 - self.muon_lr * self.weight_decay * self.scale)
        torch._foreach_add_(params, [d.view_as(p) for d, p in zip(parts, params, strict=True)])

    def _adam(self, grads: list[Tensor], places: list[int]) -> None:
        params = [self.params[i] for i in places]
        first, second = [self.first[i] for i in places], [self.second[i] for i in places]
        low, high = self.betas
        self.steps += 1
        torch._foreach_lerp_(first, grads, 1 - low)
        torch._foreach_mul_(second, high)
        torch._foreach_addcmul_(second, grads, grads, 1 - high)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, (1 - high**self.steps).sqrt())
        torch._foreach_add_(root, 1e-8)
        updates = torch._foreach_div(first, root)
        rate = self.scale / (1 - low**self.steps)
        torch._foreach_mul_(updates, rate)
        torch._foreach_mul_(updates, [-self.adam_lr[i] for i in places])
        torch._foreach_add_(params, updates)


def schedule(progress: float, warmup: float, decay: float) -> float:
    """Rate at a share of the run: up over warmup, constant, down to 0 over the last decay."""
    return max(0.0, min(1.0, progress / warmup, (1 - progress) / decay))
