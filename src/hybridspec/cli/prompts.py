# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Where the prompt comes from: the command line, a file, stdin, or the ones that ship."""

import sys
from pathlib import Path

from hybridspec.core.errors import OptionError, PromptError

BYTE_ORDER_MARK = "\ufeff"
"""what some editors put before the first character of a file"""


def prompt_text(prompt: str | None, *, is_stdin: bool, file: Path | None) -> str:
    """The one prompt that was given, verbatim; the first that ships if none was.

    Raises OptionError for more than one source, PromptError for text that is empty or unreadable.
    """
    if (prompt is not None) + is_stdin + (file is not None) > 1:
        raise OptionError("PROMPT, - and --prompt-file exclude each other: give one of them.")
    if is_stdin:
        text = _decoded(_stdin(), "stdin")
    elif file is not None:
        text = _decoded(_content(file), f"prompt file {file}").removeprefix(BYTE_ORDER_MARK)
    elif prompt is not None:
        text = _decoded(prompt.encode(errors="surrogateescape"), "PROMPT")
    else:
        from hybridspec.models.embedded import demo_prompts

        return demo_prompts()[0]
    if not text:
        raise PromptError(
            "the prompt is empty: give it some text, or leave it out for one that ships."
        )
    return text


def _stdin() -> bytes:
    if sys.stdin is None:
        raise PromptError("stdin is closed: send the prompt there, or leave out -.")
    return sys.stdin.buffer.read()


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PromptError(
            f"prompt file {file} cannot be read ({error.strerror}); give a text file."
        ) from None


def _decoded(raw: bytes, source: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{source}: byte {error.start} is not UTF-8; give UTF-8 text.") from None
