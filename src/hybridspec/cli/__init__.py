# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Floor 6: the command `hybridspec`, one file a command. Nothing below knows cyclopts or rich."""

from collections.abc import Sequence

_EXTRA = ("cyclopts", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of the command with `arguments`, those of the process if None."""
    try:
        from hybridspec.core import ending
    except KeyboardInterrupt:
        return 130
    return ending.run(lambda: _call(arguments), is_last=arguments is None)


def _call(arguments: Sequence[str] | None) -> int:
    try:
        from hybridspec.cli.app import call
    except ModuleNotFoundError as missing:
        if missing.name not in _EXTRA:
            raise
        from hybridspec.core import ending

        return ending.refuse(
            f"the command needs {missing.name}, which comes with the extra of the command line: "
            'pip install "hybridspec[cli]".'
        )
    return call(arguments)
