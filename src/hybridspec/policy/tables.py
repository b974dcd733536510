# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The two files that the policy keeps: JSON objects with a key that says what they belong to."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast

from hybridspec.core.errors import TableError, shown
from hybridspec.core.jsonfile import read_object


def read_table(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises TableError with file and place."""
    table = read_object(path, TableError, if_missing="it is optional")
    if not isinstance(table.get("key"), dict):
        raise TableError(f"{path} must hold an object under 'key'.")
    return table


def write_table(path: Path, table: Mapping[str, object]) -> None:
    """Write a table whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = f"{os.getpid()}-{threading.get_ident()}"  # several may write at a time
    half_written = path.with_suffix(f".{writer}.part")
    try:
        half_written.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        half_written.replace(path)
    finally:
        half_written.unlink(missing_ok=True)


def check_key(path: Path, table: Mapping[str, Any], key: Mapping[str, str]) -> None:
    """Raise TableError unless the table was made for `key`; names the first difference."""
    for name, wanted in key.items():
        found = table["key"].get(name)
        if found != wanted:
            raise TableError(
                f"{path} belongs to another {name}: {shown(found)}, here it is {wanted!r}."
            )


def numbers(path: Path, value: object, *, at_least: float, at_most: float) -> list[float]:
    """`value` if it is a non-empty list of numbers between these; else TableError."""
    listed = cast("list[object]", value) if isinstance(value, list) else []
    found = [float(x) for x in listed if _is_number(x) and at_least <= x <= at_most]
    if not found or len(found) < len(listed):
        raise TableError(
            f"{path}: expected a list of numbers from {at_least:g} to {at_most:g}, "
            f"got {shown(cast('object', value))}."
        )
    return found


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
