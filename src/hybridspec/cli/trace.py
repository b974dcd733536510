# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`hybridspec trace`: record real decoding to a file that every policy can be replayed over."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hybridspec.core.errors import OptionError, PromptError, TraceError
from hybridspec.core.options import DeviceName, Mode

if TYPE_CHECKING:
    from hybridspec.bench.trace import Trace
    from hybridspec.engine.llm import LLM


def trace(
    output: Path,
    *,
    model: str | None = None,
    draft_model: str | None = None,
    mode: Mode = "exact",
    device: DeviceName = "auto",
    prompts: Path | None = None,
    max_new_tokens: int = 128,
) -> int:
    """Decode plainly, and record of every position what a round there would have met.

    Args:
        output: File to write, as in heldout.safetensors; an earlier trace is replaced.
        model: Checkpoint directory or hub id of the target; the embedded pair if not given.
        draft_model: Checkpoint directory or hub id of the drafter that belongs to the target.
        mode: The mode that decodes.
        device: auto takes a CUDA device if there is one.
        prompts: Lines of JSON objects with "prompt" and, if they have one, "class"; the held-out
            prompts that ship if not given.
        max_new_tokens: Most tokens of each continuation.
    """
    if max_new_tokens < 2:
        raise OptionError(f"--max-new-tokens must be at least 2, got {max_new_tokens}.")
    chosen = _shipped() if prompts is None else _read(prompts)
    _check_output(output)
    from hybridspec.engine.llm import LLM  # torch is loaded only when all flags are right

    llm = LLM(model, draft_model=draft_model, policy="fixed", mode=mode, device=device)
    found = _recorded(llm, chosen, max_new_tokens)
    found.save(output)
    print(f"{len(found.tokens)} positions of {len(found.classes)} texts written to {output}")
    return 0


def _shipped() -> list[tuple[str, str]]:
    from hybridspec.models.embedded import heldout_prompts

    return [("heldout", prompt) for prompt in heldout_prompts()]


def _read(path: Path) -> list[tuple[str, str]]:
    """(class, prompt) of each line; raises PromptError that names the line."""
    try:
        # of bytes: JSON may hold separators that end a line of text
        lines = [line.decode("utf-8") for line in path.read_bytes().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"{path} cannot be read ({error}); give lines of JSON.") from None
    found = list[tuple[str, str]]()
    for number, line in enumerate(lines, 1):
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        values = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        prompt, name = values.get("prompt"), values.get("class", "none")
        if not isinstance(prompt, str) or not isinstance(name, str):
            raise PromptError(
                f'{path}: line {number} must be an object with a string "prompt"'
                ' and, if it has one, a string "class".'
            )
        found.append((name, prompt))
    if not found:
        raise PromptError(f"{path} holds no prompt; give lines of JSON.")
    return found


def _check_output(path: Path) -> None:
    """A file that is there must be an earlier trace, and its folder must exist."""
    from hybridspec.bench.trace import Trace

    if not path.parent.is_dir():
        raise OptionError(f"{path} cannot be written: {path.parent} is no folder.")
    if not path.exists():
        return
    try:
        Trace.load(path)
    except TraceError as error:
        raise TraceError(f"{error} Name another file, or delete it.") from None


def _recorded(llm: "LLM", chosen: list[tuple[str, str]], max_new_tokens: int) -> "Trace":
    from hybridspec.bench.record import record

    console = Console(stderr=True)
    columns = (TextColumn("texts recorded"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("trace", total=None)
        return record(
            llm,
            chosen,
            max_new_tokens=max_new_tokens,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
