# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Where measured tables are kept between runs."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """HYBRIDSPEC_CACHE, else hybridspec in XDG_CACHE_HOME, else ~/.cache/hybridspec."""
    if own := os.environ.get("HYBRIDSPEC_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hybridspec"
