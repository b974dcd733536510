# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A short name for a checkpoint's content: what learnt coefficients and timings belong to."""

import hashlib
from pathlib import Path

_SAMPLE = 1 << 16
"""bytes read at the start and at the end of each weight file"""


def fingerprint(directory: Path) -> str:
    """16 hex digits over config.json and, of each weight file, size and both ends."""
    digest = hashlib.sha256((directory / "config.json").read_bytes())
    for path in sorted(directory.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE))
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:16]
