# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`hybridspec bench decode`: the measurement of floor 5, with its progress on a terminal."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hybridspec.bench.options import DecodeOptions

if TYPE_CHECKING:
    from hybridspec.bench.report import Report


def decode(
    *,
    options: Annotated[DecodeOptions, Parameter(name="*")] = DecodeOptions(),
    json: Annotated[bool, Parameter(show_default=False)] = False,
) -> int:
    """Measure decoding: the same prompts through each policy.

    Args:
        options: What to measure.
        json: Print one object instead of a table.
    """
    from hybridspec.bench.decode import show  # torch is loaded only when all flags are right

    return show(lambda: _measured(options), is_json=json)


def _measured(options: DecodeOptions) -> "Report":
    from hybridspec.bench.run import run

    console = Console(stderr=True)
    columns = (TextColumn("texts decoded"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("decode", total=None)
        return run(
            options,
            command=shlex.join(["hybridspec", *sys.argv[1:]]),
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
