# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Does the last full statement of a text parse? A measure of code that breaks off anywhere."""

import ast
import io
import textwrap
import tokenize

HEADS = {
    "elif": "if x:\n pass\n",
    "else": "if x:\n pass\n",
    "except": "try:\n pass\n",
    "finally": "try:\n pass\n",
    "case": "match x:\n",
}
"""What must stand before a statement that begins with such a word."""


def last_statement(text: str) -> str | None:
    """The last logical line that a newline ends; None if there is none."""
    begin, last = None, None
    lines = text.splitlines(keepends=True)
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                continue
            if token.type == tokenize.NEWLINE:
                if token.string and begin is not None:  # at the end of a text it is empty
                    last = "".join(lines[begin - 1 : token.end[0]])
                begin = None
            elif begin is None:
                begin = token.start[0]
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass  # a bracket or string is open, or an indentation fits nothing: what came before counts
    return last


def parses(statement: str) -> bool:
    """Whether one logical line is Python, given a function, a loop and the head it belongs to."""
    code = textwrap.dedent(statement).rstrip()
    if code.startswith("@"):
        code += "\ndef f(): pass"
    if code.endswith(":"):
        code += " pass"
    word = code.split(None, 1)[0].rstrip(":")
    head = HEADS.get(word, "")
    body = head + (textwrap.indent(code, " ") if word == "case" else code)
    wrapped = "async def f():\n while x:\n" + textwrap.indent(body, "  ")
    try:
        ast.parse(wrapped)
    except (SyntaxError, ValueError):
        return False
    return True
