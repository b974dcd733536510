# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""An engine without a model: known tokens, known rounds, the signatures of the real one."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch

from hybridspec import Chunk, Completion, SamplingParams, Stats
from hybridspec.core.errors import PromptError
from hybridspec.core.options import EngineOptions

TEXT = "def größe(x):\n\treturn x  # [bold]not markup[/bold]\n"


class FakeLLM:
    """Token i is character i of TEXT; a drafted round emits four of them, plain emits one."""

    block_size = 16
    device = torch.device("cpu")
    text = TEXT
    latency = None

    def __init__(
        self,
        model=None,
        *,
        draft_model=None,
        policy="hybrid",
        length=None,
        correction=None,
        mode="exact",
        device="auto",
        acceptance=None,
        latency=None,
        max_context=1,
        progress=None,
    ):
        self.options = EngineOptions(
            policy=policy, length=length, correction=correction, mode=mode, device=device
        )

    def using(self, *, policy=None, length=None, correction=None, mode=None):
        changes = {"policy": policy, "length": length, "correction": correction, "mode": mode}
        other = object.__new__(type(self))
        other.options = replace(
            self.options, **{name: value for name, value in changes.items() if value is not None}
        )
        return other

    def acceptance_report(self):
        return None

    def generate(self, prompt, params=None):
        return Completion.of(list(self.stream(prompt, params)))

    def check(self, prompt):
        if len(prompt) > 1000:
            raise PromptError(f"the prompt has {len(prompt)} tokens, the model 1000 positions.")

    def stream(self, prompt, params=None) -> Iterator[Chunk]:
        """One character from the prompt's own pass, then whole rounds, half a second each."""
        text = self.text[: (params or SamplingParams()).max_new_tokens]
        step = 1 if self.options.policy == "plain" else 4
        pieces = [text[:1], *(text[i : i + step] for i in range(1, len(text), step))]
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            yield Chunk(
                text=piece,
                drafted_text=piece[:-1],
                token_ids=tuple(map(ord, piece)),
                drafts_accepted=max(0, len(piece) - 1),
                finish_reason="length" if is_last else None,
                stats=self._stats(pieces[: number + 1]),
            )

    def _stats(self, pieces):
        rounds = pieces[1:]
        return Stats(
            rounds=len(rounds),
            rounds_drafted=len(rounds),
            tokens=sum(map(len, pieces)),
            rows_read=sum(map(len, rounds)),
            drafts_accepted=sum(len(piece) - 1 for piece in rounds),
            lengths=dict(Counter(map(len, rounds))),
            seconds=0.5 * len(rounds),
        )
