# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Train the target on the token files of corpus.py for a given time, then save and measure it.

The schedule follows the clock, so the command ends when it was told to. Kernels are compiled on
random tokens while corpus.py may still be running beside it.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import target_model as model
import torch
from graphs import captured, circumstances
from muon import Optimiser, schedule
from target_forward import COMPILED, Target, delta_rule_chunked, load_target, save_target
from torch import Tensor

WARMUP, DECAY = 0.02, 0.30
"""Shares of the time in which the learning rate rises and falls."""
MUON_LR, BALANCE = 0.012, 0.01
ADAM_LR = {"embed_tokens": 0.01, "lm_head": 0.003}
ADAM_LR_REST = 0.003
SYNC_EVERY = 20


def optimiser_of(target: Target, muon_lr: float) -> Optimiser:
    """Muon for projections and experts; Adam for embedding, head, router, gates and vectors."""
    named = target.named()
    small = (
        "embed_tokens",
        "lm_head",
        "mlp.gate.",
        "shared_expert_gate",
        "in_proj_a",
        "in_proj_b",
        "conv1d",
    )
    is_matrix = [w.dim() >= 2 and not any(s in name for s in small) for name, w in named.items()]
    rates = [
        next((lr for key, lr in ADAM_LR.items() if key in name), ADAM_LR_REST) for name in named
    ]
    return Optimiser(
        params=list(named.values()), is_matrix=is_matrix, adam_lr=rates, muon_lr=muon_lr
    )


def windows(tokens: Tensor, batch: int, length: int, seed: int) -> Iterator[Tensor]:
    """Batches [batch, length + 1]: every token once an epoch, random order and phase."""
    generator = torch.Generator().manual_seed(seed)
    reach = torch.arange(length + 1, device=tokens.device)
    while True:
        phase = int(torch.randint(length, (), generator=generator))
        count = (len(tokens) - phase - 1) // length
        order = torch.randperm(count, generator=generator).to(tokens.device) * length + phase
        for begin in range(0, count - batch + 1, batch):
            yield tokens[order[begin : begin + batch, None] + reach].long()


def load_tokens(file: Path, device: torch.device) -> Tensor:
    """The token file as int32 on the device."""
    return torch.from_numpy(np.fromfile(file, np.uint16).astype(np.int32)).to(device)


def wait_for(file: Path) -> None:
    """Block until corpus.py has written its last file."""
    while not file.exists():
        time.sleep(0.2)


class Trainer:
    """One step on a fixed buffer, captured; sums of the losses stay on the device."""

    def __init__(self, target: Target, batch: int, length: int, muon_lr: float) -> None:
        self.target, self.optimiser = target, optimiser_of(target, muon_lr)
        device = target.top["lm_head.weight"].device
        self.window = torch.randint(2, 4096, (batch, length + 1), device=device)
        self.sums = torch.zeros(2, device=device)
        self.graph = captured(self.step)
        for state in (*self.optimiser.first, *self.optimiser.second, self.optimiser.steps):
            state.zero_()
        self.sums.zero_()

    def step(self) -> None:
        """Forward, backward and update; at scale 0 (warm-up) the weights stay as they are."""
        loss, balance = self.target.loss(self.window[:, :-1], self.window[:, 1:])
        grads = torch.autograd.grad(loss + BALANCE * balance, self.optimiser.params)
        self.sums += torch.stack([loss.detach(), balance.detach()])
        self.optimiser.step(list(grads))

    def run(self, batches: Iterator[Tensor], seconds: float) -> list[dict[str, float]]:
        """Train until the clock says so; the curve has one point for every SYNC_EVERY steps."""
        curve, begin, steps = [], time.time(), 0
        while (spent := time.time() - begin) < seconds:
            for _ in range(SYNC_EVERY):
                self.optimiser.scale.fill_(schedule(spent / seconds, WARMUP, DECAY))
                self.window.copy_(next(batches))
                self.graph.replay()
            steps += SYNC_EVERY
            loss, balance = (self.sums / SYNC_EVERY).tolist()
            self.sums.zero_()
            curve.append(
                {
                    "step": steps,
                    "seconds": round(time.time() - begin, 2),
                    "loss": round(loss, 4),
                    "balance": round(balance, 4),
                }
            )
            if steps % 400 == 0:
                print(curve[-1], flush=True)
        return curve


@torch.no_grad()
def heldout_nats(target: Target, tokens: Tensor, batch: int, length: int, batches: int) -> float:
    """Mean cross entropy over the first batches of held-out windows in order."""
    total = 0.0
    reach = torch.arange(length + 1, device=tokens.device)
    for i in range(batches):
        starts = (torch.arange(batch, device=tokens.device) + i * batch) * length
        window = tokens[starts[:, None] + reach].long()
        total += float(target.loss(window[:, :-1], window[:, 1:])[0])
    return total / batches


def report_of(args, curve, nats: float, summary) -> dict[str, object]:
    """What the run was and gave."""
    tokens = curve[-1]["step"] * args.batch * args.length
    per_byte = summary["heldout"]["tokens"] / summary["heldout"]["bytes"]
    last = [p["loss"] for p in curve[-10:]]
    return circumstances() | {
        "seed": args.seed,
        "tokens": tokens,
        "epochs": round(tokens / summary["train"]["tokens"], 2),
        "seconds": curve[-1]["seconds"],
        "tokens_per_second": round(tokens / curve[-1]["seconds"]),
        "muon_lr": args.muon_lr,
        "train_nats_per_token": round(sum(last) / len(last), 4),
        "heldout_nats_per_token": round(nats, 4),
        "heldout_bits_per_byte": round(nats / math.log(2) * per_byte, 4),
        "curve": curve[:: max(1, len(curve) // 300)],
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that corpus.py writes")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--seconds", type=float, help="length of training proper")
    parser.add_argument("--until", type=float, help="or: Unix time at which training proper ends")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--muon-lr", type=float, default=MUON_LR)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin, device = time.time(), torch.device("cuda")
    shape = model.Shape(context=args.length)
    top, layers = model.init(shape, args.seed, device)
    target = Target(
        shape=shape, top=top, layers=layers, delta_rule=delta_rule_chunked, wrap=COMPILED
    )
    trainer = Trainer(target, args.batch, args.length, args.muon_lr)
    print(f"compiled after {time.time() - begin:.1f} s", flush=True)
    wait_for(args.data / "done")
    tokens = load_tokens(args.data / "train.bin", device)
    heldout = load_tokens(args.data / "heldout.bin", device)
    print(f"data after {time.time() - begin:.1f} s", flush=True)
    seconds = args.seconds or args.until - time.time()
    curve = trainer.run(windows(tokens, args.batch, args.length, args.seed + 1), seconds)
    save_target(target, args.out)
    target = load_target(args.out, shape, device, delta_rule_chunked, COMPILED)
    nats = heldout_nats(target, heldout, args.batch, args.length, 16)
    summary = json.loads((args.data / "packages.json").read_text())
    report = report_of(args, curve, nats, summary)
    args.report.write_text(json.dumps(report) + "\n")
    print({k: v for k, v in report.items() if k != "curve"}, flush=True)


if __name__ == "__main__":
    main()
