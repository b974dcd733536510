# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A bar on stderr while weights are read, where that is a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

WHAT = ("target", "drafter")


@contextmanager
def loading() -> Generator[Callable[[str, int, int], None]]:
    """Within it: what to tell what is read, its bytes so far, and all of them."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(
        *columns,
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        tasks = {what: bar.add_task(f"reading {what}", total=None, visible=False) for what in WHAT}
        yield lambda what, done, total: bar.update(
            tasks[what], completed=done, total=total, visible=done < total
        )
