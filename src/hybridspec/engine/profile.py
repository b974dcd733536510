# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""T(n, c) at several contexts, on the hidden states of a text.

Each context is a prompt that is read anew. Its ids must be those of a text: repeated ids meet the
same experts, and a row would seem to cost nothing.
"""

from collections.abc import Callable, Sequence

import torch

from hybridspec.core.errors import OptionError
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.llm import LLM
from hybridspec.engine.loop import start
from hybridspec.engine.measure import (
    REPEATS,
    after_tokens,
    measure,
    measure_draft,
    measure_routing,
    spend_commits,
)
from hybridspec.engine.round import Rounds
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed

DEFAULT_CONTEXTS = (1024, 16384, 65536)
BLOCKS = 12
"""blocks that are read in every length, to see what experts cost"""


def contexts_for(llm: LLM, tokens: int, asked: Sequence[int] | None) -> list[int]:
    """The contexts asked for, rising; by default those of DEFAULT_CONTEXTS that fit.

    tokens: those of the text. Raises OptionError that names a context which does not fit.
    """
    positions = llm.pair.target.config.max_position_embeddings
    if asked is None:
        fitting = [c for c in DEFAULT_CONTEXTS if c <= min(tokens, positions - MAX_ROWS)]
        return fitting or [max(1, min(tokens, positions - MAX_ROWS))]
    for context in sorted(set(asked)):
        if context < 1:
            raise OptionError(f"contexts must be at least 1, got {context}.")
        if context + MAX_ROWS > positions:
            raise OptionError(
                f"context {context} and a block of {MAX_ROWS} do not fit the model's "
                f"{positions} positions: give contexts up to {positions - MAX_ROWS}."
            )
        if context > tokens:
            raise OptionError(
                f"context {context} is longer than the text of {tokens} tokens: "
                "give a longer one with --text."
            )
    return sorted(set(asked))


def profile(
    llm: LLM,
    text: Sequence[int],
    contexts: Sequence[int],
    *,
    repeats: int = REPEATS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Latency:
    """Measure at each context, a beginning of `text`; progress is told (done, total).

    Raises OptionError where the memory is too small for a context.
    """
    seconds, plain = dict[int, list[float]](), dict[int, float]()
    draft, commit = dict[int, float](), dict[int, float]()
    routing = None
    for done, context in enumerate(contexts):
        progress(done, len(contexts))
        try:
            rounds = _opened(llm, list(text[:context]))
            found = measure(rounds, llm.block_size, repeats)
            draft[context] = measure_draft(rounds, repeats)
            if not done:
                moves = after_tokens(rounds, text, BLOCKS)
                routing = measure_routing(rounds, llm.block_size, moves)
            commit[context] = spend_commits(rounds, llm.block_size, repeats)
        except torch.OutOfMemoryError:
            raise OptionError(
                f"context {context} does not fit the memory: give smaller --contexts."
            ) from None
        seconds[context], plain[context] = list(found.seconds[context]), found.plain[context]
    progress(len(contexts), len(contexts))
    return Latency.measured(seconds, plain=plain, routing=routing, draft=draft, commit=commit)


def _opened(llm: LLM, prompt: list[int]) -> Rounds:
    pair = llm.pair
    request = start(
        prompt,
        target=pair.target,
        drafter=pair.drafter,
        stop_ids=pair.tokenizer.stop_ids,
        budget=MAX_ROWS,
    )
    policy = Fixed(llm.block_size, device=llm.device)
    return Rounds(target=pair.target, drafter=pair.drafter, policy=policy, request=request)
