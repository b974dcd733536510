# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tables in Markdown, and what was measured with what."""

from collections.abc import Iterable, Sequence
from typing import Any


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without a line break at its end."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def circumstances(run: dict[str, Any]) -> str:
    """A sentence below a table of a GPU's figures."""
    versions = run["versions"]
    return (
        f"{run['device']}, driver {run['driver']}, torch {versions['torch']}, triton "
        f"{versions['triton']}; commit {run['commit']}; {run['date'][:10]}; random weights; "
        f"`{run['command']}`."
    )
