# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A target and a drafter with random weights that follow a script, and one request of them.

All policies decode the same request, one after the other: it is put back to the end of its prompt.
So nothing is compiled, recorded or allocated while a speed is measured.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hybridspec.bench.options import Arm, World
from hybridspec.bench.overlap import steered_experts
from hybridspec.bench.random_weights import random_drafter, random_target
from hybridspec.bench.script import Script, ScriptedDrafter, ScriptedReader
from hybridspec.bench.shape import shape_directory
from hybridspec.bench.worlds import draw_acceptances
from hybridspec.core.errors import OptionError
from hybridspec.core.options import MAX_ROWS, Mode
from hybridspec.engine.graph import CapturedRounds
from hybridspec.engine.loop import start
from hybridspec.engine.measure import measure, measure_routing
from hybridspec.engine.memory import Memory, free_bytes
from hybridspec.engine.round import Request
from hybridspec.models.draft_config import DraftConfig
from hybridspec.models.fused import FusedTarget
from hybridspec.models.target_config import TargetConfig
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.drafting import Drafting
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed, Hybrid, Policy
from hybridspec.policy.routing import correction_of

BLOCKS = 12
"""blocks, one behind the other, that price experts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a target and its drafter."""

    name: str
    target: TargetConfig
    drafter: DraftConfig

    @classmethod
    def load(cls, name: str) -> "Shape":
        """One that ships. Raises OptionError for any other."""
        directory = shape_directory(name)
        target = TargetConfig.load(directory / "target")
        return cls(name=name, target=target, drafter=DraftConfig.load(directory / "drafter"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is decoded, and how the drafts fare."""

    mode: Mode
    world: World
    persistence: float | None
    """None: the router's own choice"""
    context: int
    max_new_tokens: int
    correlation: float = 0.0
    """of a token's new experts at the first router with those at the others"""

    @property
    def positions(self) -> int:
        """Where tokens may stand, rows that are read in vain included."""
        return self.context + self.max_new_tokens + 2 * MAX_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPair:
    """Both models, their script, and the request with its prompt read."""

    shape: Shape
    target: FusedTarget
    drafter: ScriptedDrafter
    script: Script
    request: Request

    @classmethod
    def made(cls, shape: Shape, scene: Scene, device: torch.device) -> "RandomPair":
        """Random weights, bfloat16 on CUDA; reads the prompt. Raises OptionError without room."""
        config, positions = shape.target, scene.positions
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        check_memory(shape, scene, device, dtype)
        target = random_target(
            config,
            mode=scene.mode,
            taps=shape.drafter.target_layer_ids,
            device=device,
            dtype=dtype,
            positions=positions,
            steered=_steered(config, scene, device),
        )
        world = draw_acceptances(
            scene.world, positions=positions, drafts=shape.drafter.block_size - 1
        )
        script = Script.written(world, vocab_size=config.vocab_size, device=device)
        own = random_drafter(shape.drafter, target, positions=positions)
        drafter = ScriptedDrafter(drafter=own, script=script)
        request = start(
            script.written_from(0, scene.context),
            target=ScriptedReader.of(target, script),
            drafter=drafter,
            stop_ids=(),
            budget=scene.max_new_tokens,
        )
        return cls(shape=shape, target=target, drafter=drafter, script=script, request=request)

    def rounds(self, arm: Arm, latency: Latency | None) -> CapturedRounds:
        """Rounds of the request under a policy; latency: what hybrid needs."""
        is_plain = arm.policy == "plain"
        target = replace(self.target, taps=()) if is_plain else self.target
        return CapturedRounds(
            target=ScriptedReader.of(target, self.script),
            drafter=None if is_plain else self.drafter,
            policy=self._policy(arm, latency),
            request=self.request,
        )

    def measured(self) -> Latency:
        """The latency table at the end of the prompt, by real rounds that commit nothing."""
        block_size = self.shape.drafter.block_size
        anyone = self.rounds(Arm(policy="fixed", mode=self.target.mode), None)
        latency = measure(anyone, block_size)
        context, moved = self.request.ledger.length, self.request.draft.injected
        end, reach = int(context), int(moved)
        blocks = min(BLOCKS, end // MAX_ROWS, reach // MAX_ROWS)
        routing = measure_routing(anyone, block_size, [self._go_back] * blocks)
        context.fill_(end)
        moved.fill_(reach)
        return replace(latency, routing=routing)

    def _go_back(self) -> None:
        """The request as if its last block had not been; the script drafts what stood there."""
        self.request.ledger.length.sub_(MAX_ROWS)
        self.request.draft.injected.sub_(MAX_ROWS)

    def _policy(self, arm: Arm, latency: Latency | None) -> Policy:
        block_size, device = self.shape.drafter.block_size, self.target.head.device
        if arm.policy == "plain":
            return Fixed(1, device=device)
        if arm.policy == "fixed":
            return Fixed(arm.length or block_size, device=device)
        assert latency is not None
        return Hybrid(
            acceptance=Acceptance.uninformed(block_size - 1),  # worlds.py: right as it stands
            latency=latency,
            correction=correction_of(arm.correction, latency.routing, device),
            device=device,
        )

    def experts_fetched(self) -> int:
        """Distinct routed experts of the last pass, all layers together. Waits for the device."""
        return int(self.target.fetched.sum())


class Snapshot:
    """All that decoding moves, to put it back."""

    def __init__(self, rounds: CapturedRounds) -> None:
        """As it stands."""
        request, policy = rounds.request, rounds.policy
        state = request.target
        parts: list[Any] = [request.ledger, request.draft]
        if isinstance(policy, Hybrid):
            parts += (
                [policy.state] if policy.correction is None else [policy.state, policy.correction]
            )
        found = [getattr(part, field.name) for part in parts for field in fields(part)]
        moving = [value for value in found if isinstance(value, Tensor)]
        self._rounds = rounds
        self._kept: list[tuple[Tensor, Tensor]] = [
            (tensor, tensor.clone()) for tensor in (*moving, state.conv, state.recurrent)
        ]

    def restore(self) -> None:
        """In place, so that recorded rounds go on with it; what the host knew is forgotten."""
        for tensor, kept in self._kept:
            tensor.copy_(kept)
        self._rounds.forget_waiting()
        policy = self._rounds.policy
        if isinstance(policy, Hybrid):
            policy.drafting = Drafting()


def check_fit(shape: Shape, scene: Scene) -> None:
    """Raise OptionError where the text does not fit the shape."""
    config = shape.target
    if scene.positions > config.max_position_embeddings:
        raise OptionError(
            f"context {scene.context} and {scene.max_new_tokens} new tokens need "
            f"{scene.positions} positions, shape {shape.name} has "
            f"{config.max_position_embeddings}: lower one of them."
        )


def check_memory(shape: Shape, scene: Scene, device: torch.device, dtype: torch.dtype) -> None:
    """Raise OptionError where a pair of this shape and its request do not fit into memory."""
    target = random_target(
        shape.target,
        mode=scene.mode,
        taps=shape.drafter.target_layer_ids,
        device=torch.device("meta"),
        dtype=dtype,
        positions=scene.positions,
    )
    drafter = random_drafter(shape.drafter, target, positions=scene.positions)
    memory = Memory(target=target, drafter=drafter, device=device)
    memory.check(scene.context + scene.max_new_tokens, free_bytes(device))


def _steered(config: TargetConfig, scene: Scene, device: torch.device) -> Tensor | None:
    if scene.persistence is None:
        return None
    table = steered_experts(
        len(config.layer_types),
        scene.positions,
        experts=config.num_experts,
        top=config.num_experts_per_tok,
        persistence=scene.persistence,
        correlation=scene.correlation,
    )
    return table.to(device)
