# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The commands by name. Each is imported only when it is called, and torch only when it decodes."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any, cast

import cyclopts
from cyclopts.exceptions import CycloptsError
from rich.console import Console

from hybridspec.bench.flags import READERS, given
from hybridspec.cli.sentences import sentence
from hybridspec.core.errors import OptionError
from hybridspec.core.version import __version__


def call(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command that `arguments` name; raises HybridSpecError for bad ones."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = _app()(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        raise OptionError(sentence(error)) from None
    return code if isinstance(code, int) else 0  # help and version return nothing


class _Console(Console):
    """Leaves a reader that has seen enough to `ending`: rich would exit with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _app() -> cyclopts.App:
    app = cyclopts.App(
        name="hybridspec",
        help="Decode faster with the output of plain decoding.",
        version=f"hybridspec {__version__}",
        default_parameter=cyclopts.Parameter(converter=_convert, negative=()),
        suppress_keyboard_interrupt=False,
        console=_Console(),
    )
    bench = cyclopts.App(name="bench", help="Measure.")
    app.command("hybridspec.cli.generate:generate", name="generate", help="Complete a prompt.")
    app.command(bench)
    bench.command(
        "hybridspec.cli.bench:decode", name="decode", help="The same prompts through each policy."
    )
    app.command(
        "hybridspec.cli.profile:profile",
        name="profile",
        help="Measure the seconds of a round by rows and context.",
    )
    app.command(
        "hybridspec.cli.trace:trace",
        name="trace",
        help="Record decoding, to replay policies over it.",
    )
    app.command("hybridspec.cli.replay:replay", name="replay", help="Run every policy over traces.")
    app.command(
        "hybridspec.cli.doctor:doctor", name="doctor", help="What is installed, and what runs here."
    )
    return app


def _convert(kind: Any, tokens: Sequence[cyclopts.Token]) -> object:
    """As cyclopts does, but "none" is a word, and flags are read as floor 5 reads them."""
    kind = given(kind)
    read = READERS.get(kind)
    if read is None or tokens[0].keyword is None:
        return cast("object", cyclopts.convert(kind, tokens))
    try:
        return read(tokens[0].value)
    except ArgumentTypeError as error:
        raise OptionError(f"{tokens[0].keyword} {error}.") from None
