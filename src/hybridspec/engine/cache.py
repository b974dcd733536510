# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Where measured tables are kept between runs."""

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """HYBRIDSPEC_CACHE, else hybridspec in XDG_CACHE_HOME, ~/.cache or the temporary folder."""
    if own := os.environ.get("HYBRIDSPEC_CACHE"):
        return Path(own)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hybridspec"
    try:
        return Path.home() / ".cache" / "hybridspec"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / "hybridspec"
