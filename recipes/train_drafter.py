# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Train the drafter on the target's own continuations, then measure it on held-out ones.

One pass of the frozen target gives the taps of a whole sequence; many anchors a sequence share
them. The loss is cross entropy weighted by D-PACE: the smoothed chance that a round gets as far as
a position and beyond.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from drafter_model import (
    DrafterShape,
    Weights,
    draft_hidden,
    draft_logits,
    drafter_config,
    init_drafter,
    load_drafter,
    save_drafter,
)
from graphs import captured, circumstances
from muon import Optimiser, schedule
from rounds import measure, summary_of
from safetensors.torch import load_file, save_file
from target_forward import COMPILED, Target, delta_rule_chunked, load_target
from target_model import Shape
from torch import Tensor

WARMUP, DECAY, SYNC_EVERY = 0.02, 0.50, 20
MUON_LR, ADAM_LR = 0.012, 0.003
PACE_FLOOR = 0.5
"""D-PACE's alpha: the share of a position's weight that does not depend on the drafter."""
SHORTEST = 24
"""Continuations with fewer tokens are not trained on."""


def drafter_loss(
    taps: Tensor,
    tokens: Tensor,
    anchors: Tensor,
    ends: Tensor,
    embed: Tensor,
    head: Tensor,
    weights: Weights,
    shape: DrafterShape,
) -> Tensor:
    """[loss, tokens a round] as one tensor; tokens [B, L], anchors [B, A], ends [B]."""
    hidden = draft_hidden(taps, tokens, anchors, embed, weights, shape)
    places = anchors[..., None] + torch.arange(1, shape.block_size, device=anchors.device)
    valid = (places < ends[:, None, None]).float()
    labels = tokens.gather(1, places.clamp(max=tokens.shape[1] - 1).flatten(1)).view_as(places)
    logits = draft_logits(hidden, head, shape).flatten(0, 2)
    nats = F.cross_entropy(logits, labels.flatten(), reduction="none").view_as(valid)
    with torch.no_grad():
        reach = ((1 - PACE_FLOOR) * torch.exp(-nats) + PACE_FLOOR) * valid
        reach = reach.cumprod(-1)
        pace = reach.flip(-1).cumsum(-1).flip(-1)
        right = (logits.argmax(-1).view_as(labels) == labels).float() * valid
        accepted = right.cumprod(-1).sum(-1).mean()
    loss = (pace * nats * valid).sum() / (pace * valid).sum()
    return torch.stack([loss, accepted + 1])


class Sampler:
    """Sequences in proportion to their length, and anchors anywhere in the continuation."""

    def __init__(self, file: Path, device: torch.device, seed: int) -> None:
        data = {name: t.to(device) for name, t in load_file(file).items()}
        self.tokens, self.begins, self.ends = data["tokens"], data["begins"], data["ends"]
        span = (self.ends - self.begins).float()
        self.weights = torch.where(span >= SHORTEST, span, 0.0).cumsum(0)
        self.generator = torch.Generator(device).manual_seed(seed)

    def fill(self, tokens: Tensor, anchors: Tensor, ends: Tensor) -> None:
        """Overwrite the three buffers with a fresh batch."""
        device = tokens.device
        draw = torch.rand(len(tokens), device=device, generator=self.generator)
        rows = torch.searchsorted(self.weights, draw * self.weights[-1]).clamp(
            max=len(self.ends) - 1
        )
        tokens.copy_(self.tokens[rows])
        ends.copy_(self.ends[rows])
        begin = self.begins[rows, None]
        share = torch.rand(anchors.shape, device=device, generator=self.generator)
        anchors.copy_(begin + (share * (ends[:, None] - 1 - begin)).long())


class Trainer:
    """One captured step: target pass, drafter forward and backward, update."""

    def __init__(
        self,
        target: Target,
        shape: DrafterShape,
        *,
        batch: int,
        anchors: int,
        length: int,
        weights: Weights,
    ) -> None:
        device = target.top["lm_head.weight"].device
        self.target, self.shape = target, shape
        self.weights = weights
        is_matrix = [w.dim() == 2 for w in self.weights.values()]
        self.optimiser = Optimiser(
            params=list(self.weights.values()),
            is_matrix=is_matrix,
            adam_lr=[ADAM_LR] * len(is_matrix),
            muon_lr=MUON_LR,
            weight_decay=0.05,
        )
        self.tokens = torch.randint(2, 4096, (batch, length), device=device)
        self.anchors = torch.randint(99, length - 32, (batch, anchors), device=device)
        self.ends = torch.full((batch,), length, device=device)
        self.sums = torch.zeros(2, device=device)
        self.loss = COMPILED(drafter_loss)
        self.graph = captured(self.step)
        for state in (*self.optimiser.first, *self.optimiser.second, self.optimiser.steps):
            state.zero_()
        self.sums.zero_()

    def step(self) -> None:
        """At scale 0 (warm-up) the weights stay as they are."""
        with torch.no_grad():
            taps = taps_of(self.target, self.tokens, self.shape)
        top = self.target.top
        both = self.loss(
            taps,
            self.tokens,
            self.anchors,
            self.ends,
            top["model.embed_tokens.weight"],
            top["lm_head.weight"],
            self.weights,
            self.shape,
        )
        grads = torch.autograd.grad(both[0], self.optimiser.params)
        self.sums += both.detach()
        self.optimiser.step(list(grads))

    def run(self, sampler: Sampler, seconds: float) -> list[dict[str, float]]:
        """Train until the clock says so."""
        curve, begin, steps = [], time.time(), 0
        while (spent := time.time() - begin) < seconds:
            for _ in range(SYNC_EVERY):
                self.optimiser.scale.fill_(schedule(spent / seconds, WARMUP, DECAY))
                sampler.fill(self.tokens, self.anchors, self.ends)
                self.graph.replay()
            steps += SYNC_EVERY
            loss, per_round = (self.sums / SYNC_EVERY).tolist()
            self.sums.zero_()
            point = {"step": steps, "seconds": round(time.time() - begin, 2)}
            curve.append(point | {"loss": round(loss, 4), "tokens_a_block": round(per_round, 3)})
            if steps % 400 == 0:
                print(curve[-1], flush=True)
        return curve


def taps_of(target: Target, tokens: Tensor, shape: DrafterShape) -> Tensor:
    """Tapped layer outputs [B, L, taps * H] in the product dtype."""
    _, _, tapped, _ = target.trunk(tokens, shape.taps)
    return torch.cat([t.to(shape.dtype) for t in tapped], -1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="folder of continuations.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument(
        "--rounds", type=Path, required=True, help="file for the fit's observations"
    )
    parser.add_argument("--seconds", type=float, help="length of training proper")
    parser.add_argument("--until", type=float, help="or: Unix time at which training proper ends")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--anchors", type=int, default=96)
    parser.add_argument(
        "--measure", type=int, default=320, help="held-out continuations to measure on"
    )
    parser.add_argument("--init", type=Path, help="drafter folder to start from")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--mlp-size", type=int, default=768)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin, device = time.time(), torch.device("cuda")
    shape = DrafterShape(layers=args.layers, mlp_size=args.mlp_size)
    target = load_target(args.target, Shape(), device, delta_rule_chunked, COMPILED)
    sampler = Sampler(args.text / "train.safetensors", device, args.seed + 1)
    length = sampler.tokens.shape[1]
    if args.init:
        start = {n: w.requires_grad_() for n, w in load_drafter(args.init, device).items()}
    else:
        start = init_drafter(shape, args.seed, device)
    trainer = Trainer(
        target, shape, batch=args.batch, anchors=args.anchors, length=length, weights=start
    )
    print(f"compiled after {time.time() - begin:.1f} s", flush=True)
    seconds = args.seconds or args.until - time.time()
    curve = trainer.run(sampler, seconds)
    save_drafter(trainer.weights, shape, args.out)
    weights = {n: w.detach().bfloat16().float() for n, w in trainer.weights.items()}
    report = circumstances() | {
        "seed": args.seed,
        "seconds": curve[-1]["seconds"],
        "steps": curve[-1]["step"],
        "blocks": curve[-1]["step"] * args.batch * args.anchors,
        "parameters": sum(w.numel() for w in weights.values()),
        "config": drafter_config(shape),
        "text": json.loads((args.text / "counts.json").read_text()),
    }
    for name in ("test", "fit"):
        result = measure(target, weights, shape, args.text / f"{name}.safetensors", args.measure)
        report[f"heldout_{name}"] = summary_of(result)
        if name == "fit":
            save_file({k: v.cpu() for k, v in result.observations.items()}, args.rounds)
    report["curve"] = curve[:: max(1, len(curve) // 300)]
    args.report.write_text(json.dumps(report) + "\n")
    print({k: v for k, v in report.items() if k not in ("curve", "config")}, flush=True)


if __name__ == "__main__":
    main()
