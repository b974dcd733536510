# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""How a command ends, whatever happens in it: the one place that turns errors into sentences.

Exit codes: 2 for what the user can mend, 130 for Ctrl-C, 0 for a reader that has seen enough.
Imports nothing slow: a Ctrl-C before `run` is a traceback.
"""

import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hybridspec.core.errors import HybridSpecError

if TYPE_CHECKING:
    import logging

MENDABLE = 2
INTERRUPTED = 130
LONGEST_WORD = 60
LONGEST_PATH = 160
"""characters of a word that a sentence repeats whole; a path is needed whole more often"""


def run(command: Callable[[], int], *, is_last: bool = False) -> int:
    """Exit code of `command`; errors and warnings become one sentence each on stderr.

    Once the ending has begun, Ctrl-C is ignored; to the end of the process if nothing follows.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        code = _outcome(command)
    except KeyboardInterrupt:
        code = INTERRUPTED
    begin()
    code = _settled(code)
    if not is_last:
        _on_interrupt(before)
    return code


def begin() -> None:
    """The ending has begun: from here on Ctrl-C changes nothing."""
    _on_interrupt(signal.SIG_IGN)


def say(text: str) -> None:
    """Print on stderr; that it is full or that nobody reads it changes no exit code."""
    with suppress(OSError):
        print(text, file=sys.stderr)


def refuse(sentence: str) -> int:
    """Say on stderr what is wrong, on one line; returns the exit code."""
    say("hybridspec: " + " ".join(map(_shortened, sentence.split())))
    return MENDABLE


def _outcome(command: Callable[[], int]) -> int:
    if sys.stderr is None:  # closed: print would take stdout, and the next file its place
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        return refuse("stdout is closed: leave it open, or send it to a file.")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # what is written is text of a model, not of a locale; a path may be no text
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        with _warnings_as_sentences():
            return command()
    except HybridSpecError as error:
        return refuse(str(error))
    except SystemExit as left:  # argparse has printed its help
        return left.code if isinstance(left.code, int) else 0
    except OSError as error:
        return _without_stdout(error)


def _settled(code: int) -> int:
    """The code, once nothing is left that the flush at shutdown could fail on."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        code = max(code, _without_stdout(error))  # Ctrl-C and refusals outweigh a reader that left
    try:
        sys.stderr.flush()
    except OSError:
        _abandon(2)
    return code


def _without_stdout(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        _abandon(1)
        return 0
    if error.errno != errno.ENOSPC:
        raise error
    _abandon(1)
    return refuse("stdout is full: make room where it goes, or send it elsewhere.")


def _abandon(stream: int) -> None:
    """Nobody takes stdout or stderr any more: what is left goes nowhere instead of failing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


def _on_interrupt(handler: Any) -> None:
    with suppress(ValueError):  # only the main thread hears Ctrl-C
        signal.signal(signal.SIGINT, handler)


def _shortened(word: str) -> str:
    longest = LONGEST_PATH if os.sep in word else LONGEST_WORD
    return word if len(word) <= longest else f"{word[: longest - 20]}...{word[-17:]}"


@contextmanager
def _warnings_as_sentences() -> Generator[None]:
    import logging

    logger = logging.getLogger("hybridspec")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("hybridspec: %(message)s"))
    handler.addFilter(_once())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _once() -> "Callable[[logging.LogRecord], bool]":
    """Lets each sentence through once: several engines over the same weights say the same."""
    said: set[str] = set()

    def is_new(record: "logging.LogRecord") -> bool:
        sentence = record.getMessage()
        is_first = sentence not in said
        said.add(sentence)
        return is_first

    return is_new
