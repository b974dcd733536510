# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`hybridspec generate`: complete one prompt, streamed as it is decoded."""

import json as json_format
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from hybridspec.cli.loading import loading
from hybridspec.cli.prompts import prompt_text
from hybridspec.cli.screen import Screen, Silence, screen
from hybridspec.cli.statistics import describe
from hybridspec.core import ending
from hybridspec.core.options import Checkpoints, EngineOptions, SamplingParams
from hybridspec.core.records import Chunk, Completion


def generate(
    prompt: str | None = None,
    /,
    *,
    stdin: Annotated[bool, Parameter(name=["--stdin", "-"], show_default=False)] = False,
    prompt_file: Path | None = None,
    checkpoints: Annotated[Checkpoints, Parameter(name="*")] = Checkpoints(),
    options: Annotated[EngineOptions, Parameter(name="*")] = EngineOptions(),
    max_new_tokens: int = SamplingParams().max_new_tokens,
    json: Annotated[bool, Parameter(show_default=False)] = False,
) -> int:
    """Complete a prompt.

    Args:
        prompt: Text to complete; a prompt that ships if none is given.
        stdin: Read the prompt from stdin.
        prompt_file: Read the prompt from a UTF-8 file.
        checkpoints: Which target and drafter.
        options: How to decode.
        max_new_tokens: Most tokens to write.
        json: Print one object with text, token ids and statistics instead of a stream.
    """
    params = SamplingParams(max_new_tokens=max_new_tokens)
    text = prompt_text(prompt, is_stdin=stdin, file=prompt_file)
    chunks: list[Chunk] = []
    seen = Silence() if json else screen()
    try:
        _stream(text, checkpoints, options, params, seen, chunks)
    except KeyboardInterrupt:
        ending.begin()
        seen.end()
        ending.say(describe(chunks))
        raise
    seen.end()
    if json:
        print(json_format.dumps(_to_json(Completion.of(chunks))))
    else:
        ending.say(describe(chunks))
    return 0


def _stream(
    text: str,
    checkpoints: Checkpoints,
    options: EngineOptions,
    params: SamplingParams,
    seen: Screen,
    chunks: list[Chunk],
) -> None:
    from hybridspec.engine.llm import LLM  # torch is loaded only when all flags are right

    with loading() as progress:
        llm = LLM(
            checkpoints.model,
            draft_model=checkpoints.draft_model,
            policy=options.policy,
            length=options.length,
            correction=options.correction,
            mode=options.mode,
            device=options.device,
            acceptance=checkpoints.acceptance,
            latency=checkpoints.latency,
            max_context=params.max_new_tokens,
            progress=progress,
        )
    for chunk in llm.stream(text, params):
        if not chunks:
            seen.prompt(text)  # now that it has been read
        chunks.append(chunk)
        seen.show(chunk)


def _to_json(completion: Completion) -> dict[str, object]:
    return {
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stats": completion.stats.to_json(),
    }
