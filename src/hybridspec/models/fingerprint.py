# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A short name for a checkpoint's content: what learnt coefficients and timings belong to."""

import hashlib
from pathlib import Path

from hybridspec.core.errors import CheckpointError

_SAMPLE = 1 << 16
"""bytes read at the start and at the end of each weight file"""


def fingerprint(directory: Path) -> str:
    """16 hex digits over config.json and, of each weight file, size and both ends."""
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for path in sorted(directory.glob("*.safetensors")):
        if path.is_file():  # a stray directory or broken link holds no weights
            digest.update(_sample(path))
    return digest.hexdigest()[:16]


def _sample(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_SAMPLE)
            file.seek(max(0, size - _SAMPLE))
            return f"{path.name} {size}".encode() + start + file.read(_SAMPLE)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
