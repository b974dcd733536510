# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A file that holds one JSON object, read with errors that name the file and the place in it."""

import json
from pathlib import Path
from typing import Any, cast

from hybridspec.core.errors import HybridSpecError


def is_there(path: Path) -> bool:
    """Whether an optional file is to be read; a link to nowhere is, and is refused then."""
    return path.exists() or path.is_symlink()


def read_object(path: Path, error: type[HybridSpecError], *, if_missing: str) -> dict[str, Any]:
    """The JSON object in `path`; raises `error` if there is none, with the way out `if_missing`."""
    try:
        values: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path} does not exist; {if_missing}.") from None
    except json.JSONDecodeError as found:
        raise error(
            f"{path} is not valid JSON: {found.msg} in line {found.lineno}, column {found.colno}."
        ) from None
    except OSError as found:
        raise error(f"{path} cannot be read: {found.strerror}.") from None
    except (ValueError, RecursionError) as found:  # not UTF-8, huge numbers, deep nesting
        raise error(f"{path} cannot be read: {found}.") from None
    if not isinstance(values, dict):
        raise error(f"{path} must hold a JSON object, got {type(values).__name__}.")
    return cast("dict[str, Any]", values)
