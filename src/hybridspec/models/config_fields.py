# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Fields of a config.json, each read with its type and range; a complaint names file and field."""

from pathlib import Path
from typing import Any

from hybridspec.core.errors import CheckpointError, shown
from hybridspec.core.jsonfile import read_object

LARGEST_SIZE = 1 << 24
"""more than any size of these families; a larger one is a damaged file"""
LARGEST = {
    "num_hidden_layers": 1 << 10,
    "head_dim": 1 << 10,
    "max_position_embeddings": 1 << 20,
}
"""of those sizes for which room is made, or time spent, before any tensor's shape is compared"""
SMALLEST_RATE, LARGEST_RATE = 1e-30, 1e30
"""what float32 still holds with room to spare, so that neither it nor its inverse is lost"""


class Fields:
    """One JSON object of a configuration; every complaint names file and field."""

    def __init__(self, path: Path, values: dict[str, Any] | None = None) -> None:
        """`values` default to the JSON object in `path`."""
        self.path = path
        self.values = read_json(path) if values is None else values

    def inside(self, name: str) -> "Fields":
        """The object under a field."""
        return Fields(self.path, self.get(name, dict))

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A field's value, of the type asked for; null is missing, an error without a default."""
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self.path}: field {name!r} is missing.")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(
                f"{self.path}: field {name!r} must be of type {kind.__name__}, got {shown(value)}."
            )
        return value

    def positive(self, name: str) -> int:
        """A size: a whole number from 1 to the largest that such a field may hold."""
        value, largest = self.get(name, int), LARGEST.get(name, LARGEST_SIZE)
        if not 1 <= value <= largest:
            raise CheckpointError(
                f"{self.path}: field {name!r} must be from 1 to {largest}, got {shown(value)}."
            )
        return value

    def rate(self, name: str, default: float | None = None) -> float:
        """A number from SMALLEST_RATE to LARGEST_RATE."""
        value: Any = self.values.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not SMALLEST_RATE <= value <= LARGEST_RATE:
            raise CheckpointError(
                f"{self.path}: field {name!r} must be a number from {SMALLEST_RATE} to "
                f"{LARGEST_RATE}, got {shown(value)}."
            )
        return float(value)

    def expect(self, name: str, only: object) -> None:
        """Refuse a field with any value but the one that is supported; it may be absent or null."""
        value = self.values.get(name)
        if value is not None and value != only:
            raise CheckpointError(
                f"{self.path}: field {name!r} is {shown(value)}; only {only!r} is supported."
            )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a checkpoint's file; raises CheckpointError with file and place."""
    return read_object(path, CheckpointError, if_missing="give a checkpoint directory that has it")


def token_ids(value: object, path: Path) -> tuple[int, ...]:
    """One id, a list of ids or nothing, as `eos_token_id` is written."""
    ids: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise CheckpointError(
            f"{path}: eos_token_id must be a token id or a list of them, got {shown(value)}."
        )
    return tuple(ids)


def check_multiple(config: object, more: str, fewer: str, path: Path) -> None:
    """Refuse a count that does not divide into groups."""
    large, small = getattr(config, more), getattr(config, fewer)
    if large % small:
        raise CheckpointError(f"{path}: {more} {large} is not a multiple of {fewer} {small}.")
