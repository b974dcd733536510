# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How a command ends, whatever happens in it: the one place that turns errors into sentences.

Exit codes: 2 for what the user can mend, 130 for Ctrl-C, 0 for a reader that has seen enough.
"""

import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from hybridspec.core.errors import HybridSpecError

MENDABLE = 2
INTERRUPTED = 130


def run(command: Callable[[], int]) -> int:
    """Exit code of `command`; errors and warnings become one sentence each on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # what is written is text of a model, not of a locale
        sys.stdout.reconfigure(encoding="utf-8")
    with _warnings_as_sentences():
        try:
            code = command()
            sys.stdout.flush()
        except HybridSpecError as error:
            return refuse(str(error))
        except KeyboardInterrupt:
            return INTERRUPTED
        except BrokenPipeError:
            _abandon_stdout()
            return 0
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            _abandon_stdout()
            return refuse("stdout is full: make room where it goes, or send it elsewhere.")
    return code


def refuse(sentence: str) -> int:
    """Say on stderr what is wrong, on one line; returns the exit code."""
    print("hybridspec: " + " ".join(sentence.split()), file=sys.stderr)
    return MENDABLE


def _abandon_stdout() -> None:
    """Nobody takes stdout any more: let the flush at shutdown go nowhere instead of failing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def _warnings_as_sentences() -> Generator[None]:
    logger = logging.getLogger("hybridspec")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("hybridspec: %(message)s"))
    handler.addFilter(_Once())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Once(logging.Filter):
    """Lets each sentence through once: several engines over the same weights say the same."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        sentence = record.getMessage()
        is_new = sentence not in self._said
        self._said.add(sentence)
        return is_new
