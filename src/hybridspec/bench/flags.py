# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A frozen dataclass as flags of argparse, so that no option is described twice."""

import argparse
import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Literal, NoReturn, get_args, get_origin, get_type_hints

from hybridspec.core.errors import OptionError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Parser(argparse.ArgumentParser):
    """Reports a mistake as OptionError instead of printing usage and leaving."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong as one sentence."""
        raise OptionError(f"{message}; see {self.prog} --help.")


def add_flags(parser: argparse.ArgumentParser, options: "type[DataclassInstance]") -> None:
    """One `--kebab-case` flag a field, with its default and the string under it as help."""
    hints, docs = get_type_hints(options), _field_docs(options)
    for field in fields(options):
        kind = _given(hints[field.name])
        default = "" if field.default is None else f" (default: {field.default})"
        parser.add_argument(
            "--" + field.name.replace("_", "-"),
            type=_READERS.get(kind, str),
            choices=get_args(kind) if get_origin(kind) is Literal else None,
            default=field.default,
            help=docs[field.name] + default,
        )


def whole(text: str) -> int:
    """A whole number; raises ArgumentTypeError for 1.5, 1e3 and 1_0, whose meaning is a guess."""
    if not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


_READERS: dict[object, Callable[[str], object]] = {int: whole, Path: Path}


def _given(hint: object) -> object:
    """The type of a value that is given: the annotation without None."""
    if isinstance(hint, UnionType):
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
