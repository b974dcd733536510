# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What is wrong with a command line, in one sentence that names the value and the way out."""

from typing import get_args

from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from hybridspec.core.ending import LONGEST_WORD
from hybridspec.core.errors import HybridSpecError


def sentence(error: CycloptsError) -> str:
    """The sentence for `error`."""
    command = " ".join(["hybridspec", *(error.command_chain or ())])
    help_ = f"see {command} --help"
    match error:
        case UnknownOptionError():
            return f"unknown option {error.token.keyword or error.token.value}; {help_}."
        case UnusedCliTokensError():
            extra = (error.unused_tokens or [""])[0][:LONGEST_WORD]
            takes_prompt = (error.command_chain or ())[-1:] == ("generate",)
            way_out = "put a prompt with spaces in quotes" if takes_prompt else help_
            return f"{extra!r} is one argument too many; {way_out}."
        case CoercionError() if isinstance(error.__cause__, HybridSpecError):
            return str(error.__cause__)
        case CoercionError() if error.token is not None:
            return f"{error.token.keyword} {_expected(error)}; {help_}."
        case MissingArgumentError() if error.argument is not None:
            return f"{error.argument.name} needs a value; {help_}."
        case RepeatArgumentError():
            return f"{error.token.keyword} is given twice; give it once."
        case UnknownCommandError():
            unknown = (error.unused_tokens or [""])[0]
            return f"unknown command {unknown!r}; {help_}."
        case _:
            error.verbose = False
            return f"{' '.join(str(error).split())} {help_[0].upper()}{help_[1:]}."


def _expected(error: CoercionError) -> str:
    assert error.token is not None
    choices = get_args(error.target_type)
    if choices:
        return f"must be one of {', '.join(map(str, choices))}, got {error.token.value!r}"
    return f"cannot be {error.token.value!r}"
