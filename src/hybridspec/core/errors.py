# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a user can get wrong. Each message names the value and the way out.

`assert` is for our own mistakes; these are for theirs. The command line turns every
`HybridSpecError` into one sentence and exit code 2.
"""

import reprlib

_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother = 2, 60, 60
LONGEST_SHOWN = 80
LONGEST_QUOTED = 120
"""characters of a value, and of another library's words, that a message repeats"""


def shown(value: object) -> str:
    """A value as a message repeats it: a damaged file may hold megabytes where a word belongs."""
    return shortened(_SHOWN.repr(value), LONGEST_SHOWN)


def shortened(text: str, longest: int = LONGEST_QUOTED) -> str:
    """The start of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


class HybridSpecError(Exception):
    """Base of all errors that a user can mend."""


class OptionError(HybridSpecError, ValueError):
    """An option, or a combination of options, that is not supported."""


class PromptError(HybridSpecError, ValueError):
    """A prompt that cannot be decoded: empty, unreadable or too long."""


class CheckpointError(HybridSpecError):
    """A checkpoint directory that is missing, damaged, or of a model that is not supported."""


class TableError(HybridSpecError):
    """An acceptance or latency file that is damaged or belongs to something else."""


class TraceError(HybridSpecError):
    """A trace that is damaged, of another version, or of another pair than the ones beside it."""
