# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`hybridspec profile`: seconds of a round by rows and context, and of an expert, in a file."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hybridspec.cli.prompts import prompt_text
from hybridspec.core.errors import OptionError, TableError
from hybridspec.core.options import DeviceName, Mode

if TYPE_CHECKING:
    from hybridspec.engine.llm import LLM
    from hybridspec.policy.latency import Latency
    from hybridspec.policy.routing import RoutingCosts


def profile(
    *,
    model: str | None = None,
    draft_model: str | None = None,
    mode: Mode = "exact",
    device: DeviceName = "auto",
    contexts: str | None = None,
    text: Path | None = None,
    repeats: int = 5,
    output: Path | None = None,
) -> int:
    """Measure the seconds of a round by rows and context, and keep them in a file.

    Args:
        model: Checkpoint directory or hub id of the target; the embedded pair if not given.
        draft_model: Checkpoint directory or hub id of the drafter that belongs to the target.
        mode: The mode whose rounds are timed.
        device: auto takes a CUDA device if there is one.
        contexts: Tokens before the round, as in 1024,16384; those of 1024, 16384 and 65536 that
            fit if not given.
        text: UTF-8 file whose beginning is the context; held-out texts that ship if not given.
        repeats: Timings of each length, of which the median is kept.
        output: File to write; the one in the cache, which decoding finds by itself, if not given.
    """
    asked = None if contexts is None else _contexts(contexts)
    if repeats < 1:
        raise OptionError(f"--repeats must be at least 1, got {repeats}.")
    words = None if text is None else prompt_text(None, is_stdin=False, file=text)
    from hybridspec.engine.llm import LLM  # torch is loaded only when all flags are right

    llm = LLM(model, draft_model=draft_model, policy="fixed", mode=mode, device=device)
    path = output or llm.tables.kept()
    if output is not None:
        _check_output(output, llm)
    latency = _measured(llm, words, asked, repeats)
    try:
        latency.save(path, key=llm.tables.key())
    except OSError as error:
        raise OptionError(f"{path} cannot be written ({error.strerror}); name --output.") from None
    for context in latency.seconds:
        print(_line(latency, context))
    print(_prices(latency.routing))
    print(f"written to {path}")
    return 0


def _contexts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise OptionError(f"--contexts must be whole numbers as in 1024,16384; got {text!r:.60}.")
    if "0" in {str(int(part)) for part in parts}:
        raise OptionError(f"--contexts must be at least 1, got {text!r:.60}.")
    return [int(part) for part in parts]


def _check_output(path: Path, llm: "LLM") -> None:
    """A file that is there must be an earlier table of the same key; it is replaced."""
    from hybridspec.policy.tables import check_key, read_table

    if not path.exists():
        return
    try:
        check_key(path, read_table(path), llm.tables.key())
    except TableError as error:
        raise TableError(f"{error} Name another --output, or delete it.") from None


def _measured(llm: "LLM", words: str | None, asked: list[int] | None, repeats: int) -> "Latency":
    from hybridspec.engine.profile import contexts_for
    from hybridspec.engine.profile import profile as measure
    from hybridspec.models.embedded import heldout_prompts

    ids = llm.pair.tokenizer.encode("\n".join(heldout_prompts()) if words is None else words)
    chosen = contexts_for(llm, len(ids), asked)
    console = Console(stderr=True)
    columns = (TextColumn("contexts measured"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("profile", total=None)
        return measure(
            llm,
            ids,
            chosen,
            repeats=repeats,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _line(latency: "Latency", context: int) -> str:
    assert latency.draft is not None
    assert latency.commit is not None
    row = latency.seconds[context]
    return (
        f"context {context}: plain {latency.plain[context] * 1e3:.2f} ms, "
        f"1 row {row[0] * 1e3:.2f}, {len(row)} rows {row[-1] * 1e3:.2f}, "
        f"of which draft {latency.draft[context] * 1e3:.2f}; "
        f"commit {latency.commit[context] * 1e3:.2f}"
    )


def _prices(routing: "RoutingCosts | None") -> str:
    if routing is None:
        return "experts: not counted on this device"
    return (
        f"an expert {routing.seconds_per_expert * 1e6:.2f} us, a row without any "
        f"{routing.seconds_per_row * 1e6:.1f} us; an expert more at the first router, "
        f"{routing.correlation:.2f} more at each of {routing.layers - 1} others"
    )
