# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The command that a result records: what another would type to get it again."""

import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def typed() -> str:
    """The arguments of this process, without where the output went and what machine it ran on."""
    script, *given = sys.argv
    path = Path(script).resolve()
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
    kept, arguments = list[str](), iter(given)
    for argument in arguments:
        if argument == "--output":
            next(arguments, None)
        elif not argument.startswith("--output="):
            kept.append(Path(argument).name if argument.startswith(("/", "~")) else argument)
    return shlex.join(["python", str(name), *kept])
