# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A stream as it is seen: bare text in a pipe, accepted runs in colour on a terminal."""

import sys
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from hybridspec.core.records import Chunk

RUN_STYLES = ("green", "cyan")
"""Runs of accepted drafts alternate, so that neighbours can be told apart."""


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

    def prompt(self, text: str) -> None:
        """A prompt is no part of a completion."""

    def show(self, chunk: "Chunk") -> None:
        """Write and flush the text, which holds whole characters only."""
        sys.stdout.write(chunk.text)
        sys.stdout.flush()

    def end(self) -> None:
        """The text ends where the model ended it."""


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
        """Leave the line."""
        self._console.print()

    def _write(self, text: str, style: str) -> None:
        self._console.print(Text(text, style), end="", soft_wrap=True)


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
