# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Continuations written by the target itself: the drafter's training text and its held-out test.

Prompts are cut from the token files, half of them at the beginning of a file. Of the continuations
for training two fifths are greedy, two fifths stray (their first tokens are sampled, the rest is
greedy: greedy text in a context that the target has not learnt by heart), one fifth is sampled
throughout. Each is cut where it ends (end of text) or starts to loop.
"""

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from graphs import captured
from safetensors.torch import save_file
from target_decode import Decoder
from target_forward import COMPILED, delta_rule_chunked, load_target
from target_model import Shape
from torch import Tensor
from train_target import load_tokens, wait_for

LENGTH = 768
"""Prompt and continuation together, unless told otherwise."""
PROMPTS = (256, 96, 384, 160)
"""Prompt lengths, one a batch, in turn."""
GREEDY, STRAYING = 0.4, 0.4
"""Shares of a training batch; the rest is sampled throughout."""
TEMPERATURE, STRAY_TEMPERATURE, STRAY_TOKENS = 0.7, 1.0, 96
LOOP_TOKENS, LOOP_PERIOD = 48, 24


def loop_start(tokens: Tensor, start: int) -> Tensor:
    """First index at which the last LOOP_TOKENS generated tokens loop; [B], else the length.

    tokens [B, L]; generated from start on.
    """
    batch, length = tokens.shape
    first = torch.full((batch,), length, device=tokens.device)
    index = torch.arange(length, device=tokens.device)
    for period in range(1, LOOP_PERIOD + 1):
        same = torch.zeros_like(tokens, dtype=torch.bool)
        same[:, period:] = tokens[:, period:] == tokens[:, :-period]
        same &= index >= start + period
        broken = torch.where(same, start + period - 1, index).cummax(1).values
        looping = (index - broken >= LOOP_TOKENS - period) & same
        found = torch.where(looping, index, length).amin(1)
        first = torch.minimum(first, found)
    return first


def ends_of(tokens: Tensor, start: int) -> Tensor:
    """First index that no longer counts: end of text, a loop, or the length; [B]."""
    index = torch.arange(tokens.shape[1], device=tokens.device)
    over = torch.where((tokens == 0) & (index >= start), index, tokens.shape[1]).amin(1)
    return torch.minimum(over, loop_start(tokens, start))


def cut_prompts(tokens: Tensor, starts: Tensor, size: int, count: int, seed: int) -> Tensor:
    """Prompts [count, size] inside one file each: half from beginnings, half from anywhere."""
    generator = torch.Generator().manual_seed(seed)
    reach = torch.arange(size, device=tokens.device)

    def windows(begins: Tensor, wanted: int) -> Tensor:
        begins = begins.to(tokens.device)
        found = tokens[begins[begins < len(tokens) - size, None] + reach].long()
        return found[(found != 0).all(1)][:wanted]

    from_files = starts[torch.randint(len(starts), (count,), generator=generator)]
    first = windows(from_files, count // 2)
    anywhere = torch.randint(len(tokens) - size, (2 * count,), generator=generator)
    return torch.cat([first, windows(anywhere, count - len(first))])


def half_of(path: str) -> int:
    """Held-out files are split by a hash of their path: 0 may be fitted on, 1 is for tests."""
    return hashlib.sha256(path.encode()).digest()[0] % 2


def heldout_half(tokens: Tensor, index: list[dict], half: int) -> Tensor:
    """The tokens of one half of the held-out files."""
    lengths = [row["tokens"] for row in index]
    parts = tokens.split(lengths)
    return torch.cat(
        [p for p, row in zip(parts, index, strict=True) if half_of(row["path"]) == half]
    )


class Writer:
    """A decoder with its captured step."""

    def __init__(self, folder: Path, batch: int, length: int) -> None:
        device = torch.device("cuda")
        target = load_target(folder, Shape(), device, delta_rule_chunked, COMPILED)
        self.decoder = Decoder(target, batch, length)
        with torch.no_grad():
            self.graph = captured(self.decoder.step)

    def write(self, prompts: Tensor, *, greedy: float, straying: float) -> tuple[Tensor, Tensor]:
        """(tokens [batch, length] int16, ends [batch]); greedy rows first, then straying ones."""
        decoder = self.decoder
        first, second = int(greedy * len(prompts)), int((greedy + straying) * len(prompts))
        decoder.temperature.fill_(TEMPERATURE)
        decoder.temperature[first:second] = STRAY_TEMPERATURE
        decoder.temperature[:first] = 0
        decoder.prefill(prompts)
        for written in range(1, decoder.tokens.shape[1] - prompts.shape[1]):
            if written == STRAY_TOKENS:
                decoder.temperature[first:second] = 0
            self.graph.replay()
        return decoder.tokens.to(torch.int16), ends_of(decoder.tokens, prompts.shape[1])


def shuffled_rows(prompts: Tensor, seed: int) -> Tensor:
    """Rows in random order, so that every share gets both kinds of prompt."""
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(seed))
    return prompts[order.to(prompts.device)]


def write_split(
    writer: Writer,
    tokens: Tensor,
    file: Path,
    *,
    seconds: float,
    batches: int,
    greedy: bool,
    seed: int,
) -> dict[str, object]:
    """Write batches until the time or their number is reached; returns counts."""
    begin, rows = time.time(), writer.decoder.tokens.shape[0]
    starts = torch.cat(
        [torch.zeros(1, dtype=torch.long), (tokens == 0).nonzero()[:-1, 0].cpu() + 1]
    )
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    while time.time() - begin < seconds and len(parts) < batches:
        size = PROMPTS[len(parts) % len(PROMPTS)] if not greedy else PROMPTS[0]
        prompts = cut_prompts(tokens, starts, size, rows, seed + len(parts))
        prompts = shuffled_rows(prompts, seed + len(parts))
        shares = (1.0, 0.0) if greedy else (GREEDY, STRAYING)
        text, ends = writer.write(prompts, greedy=shares[0], straying=shares[1])
        parts.append((text, torch.full_like(ends, size), ends))
        torch.cuda.synchronize()
    text, begins, ends = (torch.cat(column) for column in zip(*parts, strict=True))
    save_file({"tokens": text.cpu(), "begins": begins.cpu(), "ends": ends.cpu()}, file)
    return {
        "sequences": len(text),
        "tokens_written": int((text.shape[1] - begins).sum()),
        "tokens_kept": int((ends - begins).sum()),
        "seconds": round(time.time() - begin, 1),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that corpus.py writes")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=75)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--seed", type=int, default=100)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device, begin = torch.device("cuda"), time.time()
    torch.manual_seed(args.seed)
    writer = Writer(args.target, args.batch, args.length)
    print(f"compiled after {time.time() - begin:.1f} s", flush=True)
    wait_for(args.data / "done")
    counts = {}
    heldout = load_tokens(args.data / "heldout.bin", device)
    index = json.loads((args.data / "index.json").read_text())
    for half, name in enumerate(("fit", "test")):
        counts[name] = write_split(
            writer,
            heldout_half(heldout, index, half),
            args.out / f"{name}.safetensors",
            seconds=600,
            batches=1,
            greedy=True,
            seed=10 + half,
        )
    counts["train"] = write_split(
        writer,
        load_tokens(args.data / "train.bin", device),
        args.out / "train.safetensors",
        seconds=args.seconds,
        batches=10**6,
        greedy=False,
        seed=args.seed,
    )
    (args.out / "counts.json").write_text(json.dumps(counts) + "\n")
    print(counts, flush=True)


if __name__ == "__main__":
    main()
