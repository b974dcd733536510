# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Record a trace: plain decoding that drafts and reads a whole block at every position."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hybridspec import kernels
from hybridspec.bench.heard import HeardTarget
from hybridspec.bench.trace import Trace
from hybridspec.core.errors import OptionError, PromptError
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.llm import LLM
from hybridspec.engine.loop import start
from hybridspec.engine.round import Reader, Request
from hybridspec.models.target import Target

Progress = Callable[[int, int], None]
ARRAYS = ("tokens", "accepted", "log_odds", "experts", "seconds")


class Heard(Reader, Protocol):
    """A target that keeps which experts it chose."""

    @property
    def heard(self) -> list[Tensor]:
        """[N, k] a layer with a router, of the passes since it was last cleared."""
        ...


def record(
    llm: LLM,
    prompts: Sequence[tuple[str, str]],
    *,
    max_new_tokens: int,
    progress: Progress = lambda done, total: None,
) -> Trace:
    """Record the plain continuation of each (class, prompt).

    Texts that end with the prompt's own token have no round and are left out. Raises PromptError
    for a prompt that does not fit, OptionError if none has a round. progress: (texts, all texts).
    """
    for _, prompt in prompts:
        llm.check(prompt)
    encoded = [llm.pair.tokenizer.encode(prompt) for _, prompt in prompts]
    room = llm.pair.target.config.max_position_embeddings - MAX_ROWS
    for number, ids in enumerate(encoded):
        if not ids or len(ids) + max_new_tokens > room:
            raise PromptError(
                f"prompt {number + 1} has {len(ids)} tokens: with {max_new_tokens} new ones and a "
                f"block it must hold 1 to {room - max_new_tokens}."
            )
    parts: dict[str, list[Tensor]] = {name: [] for name in ARRAYS}
    classes, begins, lengths = list[str](), [0], list[int]()
    for done, ((name, _), ids) in enumerate(zip(prompts, encoded, strict=True)):
        progress(done, len(prompts))
        positions = _record_text(llm, ids, max_new_tokens)
        if not positions["tokens"]:
            continue
        for array, values in positions.items():
            parts[array].append(torch.stack(values))
        classes.append(name)
        lengths.append(len(ids))
        begins.append(begins[-1] + len(positions["tokens"]))
    progress(len(prompts), len(prompts))
    if not classes:
        raise OptionError("no prompt was continued by a round: give others, or more new tokens.")
    return Trace(
        key=llm.tables.key(),
        classes=tuple(classes),
        begins=torch.tensor(begins),
        prompts=torch.tensor(lengths),
        budgets=torch.full((len(classes),), max_new_tokens - 1),
        **{name: torch.cat(values) for name, values in parts.items()},
    )


@torch.inference_mode()
def _record_text(llm: LLM, ids: list[int], max_new_tokens: int) -> dict[str, list[Tensor]]:
    target, drafter = listening(llm.pair.target), llm.pair.drafter
    stop_ids = llm.pair.tokenizer.stop_ids
    request = start(ids, target=target, drafter=drafter, stop_ids=stop_ids, budget=max_new_tokens)
    found: dict[str, list[Tensor]] = {name: [] for name in ARRAYS}
    if int(request.ledger.anchor) in stop_ids:
        return found
    while not bool(request.ledger.is_done):
        for name, value in _record_position(llm, target, request).items():
            found[name].append(value)
    return found


def _record_position(llm: LLM, target: Heard, request: Request) -> dict[str, Tensor]:
    """One plain round that drafts and reads the whole block, and commits its first row."""
    drafter, ledger = llm.pair.drafter, request.ledger
    assert drafter is not None
    times = [_now(request)]
    block = drafter.propose(ledger.anchor, request.draft)
    times.append(_now(request))
    every = torch.full_like(request.one, llm.block_size)
    target.heard.clear()
    routed = target.read_to_router(block.tokens, every, request.target)
    reading = target.read_on(routed, every, request.target)
    experts = torch.stack([ids[: llm.block_size] for ids in target.heard], 1)
    drafts = block.tokens[1:] == reading.tokens[: llm.block_size - 1]
    accepted = drafts.long().cumprod(0).sum().to(torch.uint8).cpu()
    token, log_odds = reading.tokens[0].to(torch.int32).cpu(), block.log_odds.cpu().clone()
    times.append(_now(request))
    settle = kernels.of(ledger.anchor.device).settle
    settle(block.tokens, reading.tokens, request.one, request.stop_ids, ledger)
    request.target.commit(ledger.committed)
    drafter.take(reading.taps, request.draft, ledger.committed)
    times.append(_now(request))
    return {
        "tokens": token,
        "accepted": accepted,
        "log_odds": log_odds,
        "experts": experts.to(torch.int16).cpu(),
        "seconds": torch.tensor(times, dtype=torch.float64).diff().float(),
    }


def listening(target: Any) -> Heard:
    """A target that keeps which experts it chose, over the same weights."""
    if isinstance(target, Target):
        return HeardTarget.listening(target)
    from hybridspec.bench.heard_fused import HeardFusedTarget  # needs Triton, as target did

    return HeardFusedTarget.listening(target)


def _now(request: Request) -> float:
    int(request.ledger.rounds)  # what is under way has ended
    return time.perf_counter()
