# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A frozen dataclass as flags of argparse, so that no option is described twice."""

import argparse
import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from hybridspec.core.errors import OptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance, SupportsWrite


class Parser(argparse.ArgumentParser):
    """Reports a mistake as OptionError instead of printing usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong as one sentence."""
        raise OptionError(f"{message}; see {self.prog} --help.")

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Print the help; a full disk is an error, where argparse would be silent."""
        print(self.format_help(), end="", file=file)


def add_flags(parser: argparse.ArgumentParser, options: "type[DataclassInstance]") -> None:
    """One `--kebab-case` flag a field, with its default and the string under it as help."""
    hints, docs = get_type_hints(options), _field_docs(options)
    for field in fields(options):
        kind, flag = given(hints[field.name]), "--" + field.name.replace("_", "-")
        if kind is bool:
            parser.add_argument(flag, action="store_true", help=docs[field.name])
            continue
        default = "" if field.default is None else f" (default: {field.default})"
        parser.add_argument(
            flag,
            type=READERS.get(kind, str),
            choices=get_args(kind) if get_origin(kind) is Literal else None,
            default=field.default,
            help=docs[field.name] + default,
        )


def whole(text: str) -> int:
    """A whole number; raises ArgumentTypeError for 1.5, 1e3 and 1_0, whose meaning is a guess."""
    if not re.fullmatch("-?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at most 18 digits, got {text!r}"
        )
    return int(text)


def number(text: str) -> float:
    """A number; raises ArgumentTypeError for what is none or has no end."""
    try:
        value = float(text) if text.isascii() else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}")
    return value


def filled(text: str) -> str:
    """The text; raises ArgumentTypeError if there is none."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give it a value or leave it out")
    return text


READERS: dict[object, Callable[[str], object]] = {
    int: whole,
    float: number,
    str: filled,
    Path: lambda text: Path(filled(text)),
}
"""How the value of a flag is read, by its type; what is not here is taken as it is."""


def given(hint: object) -> object:
    """The type of a value that is given: the annotation without None."""
    if get_origin(hint) in (UnionType, Union):  # the second where one side is a Literal
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint


def _field_docs(options: type) -> dict[str, str]:
    """The string under each field, of the class and of those that it extends."""
    docs: dict[str, str] = {}
    for cls in reversed(options.__mro__[:-1]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, doc in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                assert isinstance(field.target, ast.Name)
                docs[field.target.id] = str(ast.literal_eval(doc.value))
    return docs
