# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Shapes that ship: configurations without weights. Imports nothing slow, as flags need it."""

from pathlib import Path

from hybridspec.core.errors import OptionError

SHAPES = Path(__file__).parent / "shapes"


def shape_directory(name: str) -> Path:
    """Where the configurations of a shape lie: target/ and drafter/. Raises OptionError."""
    known = sorted(path.name for path in SHAPES.iterdir())
    if name not in known:
        raise OptionError(f"shape {name!r} is not known: give {' or '.join(known)}.")
    return SHAPES / name
