# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A stream as it is seen: bare text in a pipe, accepted runs in colour on a terminal.

A pipe gets the text as it is. A terminal would obey control characters: it gets pictures of them.
"""

import os
import sys
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style

from hybridspec.core import ending

if TYPE_CHECKING:
    from hybridspec.core.records import Chunk

RUN_STYLES = ("green", "cyan")
"""Runs of accepted drafts alternate, so that neighbours can be told apart."""
PICTURES = (
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:x}" for code in range(0x80, 0xA0)}  # Unicode pictures none of these
)
"""What stands for a control character; lines and tabs stay."""


class Screen(Protocol):
    """Where a completion appears."""

    def prompt(self, text: str) -> None:
        """Show what is completed."""

    def show(self, chunk: "Chunk") -> None:
        """Show what one round added."""

    def end(self) -> None:
        """Nothing more follows."""


class Pipe:
    """The completion and nothing else."""

    def __init__(self) -> None:
        self._last = "\n"

    def prompt(self, text: str) -> None:
        """A prompt is no part of a completion."""

    def show(self, chunk: "Chunk") -> None:
        """Write and flush the text, which holds whole characters only."""
        self._last = chunk.text[-1:] or self._last
        sys.stdout.write(chunk.text)
        sys.stdout.flush()

    def end(self) -> None:
        """The text ends where the model ended it; what follows in the same place is a new line."""
        if self._last != "\n" and _is_shared():
            ending.say("")


class Terminal:
    """The prompt dim; accepted drafts in colour; the target's own tokens plain."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._styles = cycle(RUN_STYLES)

    def prompt(self, text: str) -> None:
        """Show the prompt dim."""
        self._write(text, "dim")

    def show(self, chunk: "Chunk") -> None:
        """Show what drafts wrote in the next colour, and the rest plain."""
        if chunk.drafted_text:
            self._write(chunk.drafted_text, next(self._styles))
        self._write(chunk.text.removeprefix(chunk.drafted_text), "")

    def end(self) -> None:
        """Leave the line, past the console: after Ctrl-C it may hold text that it has shown."""
        self._console.file.write("\n")
        self._console.file.flush()

    def _write(self, text: str, style: str) -> None:
        # a Segment is written as it is, where a Text turns tabs into spaces
        segment = Segment(text.translate(PICTURES), Style.parse(style))
        self._console.print(Segments([segment]), end="", soft_wrap=True)


def _is_shared() -> bool:
    """Whether stdout and stderr go to the same place."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except OSError:  # one of them is no file
        return False


def screen() -> Screen:
    """The screen that fits stdout."""
    if not sys.stdout.isatty():
        return Pipe()
    return Terminal(Console(file=sys.stdout, highlight=False))


class Silence:
    """No screen: `--json` prints everything at the end."""

    def prompt(self, text: str) -> None:
        """Show nothing."""

    def show(self, chunk: "Chunk") -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""
