# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Kernels compiled for sm_90 in a process of its own: this one interprets them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SHARED_LIMIT = 227 << 10
"""bytes that a program of sm_90 may hold"""


def compiled(program: str, cache: Path) -> Any:
    """What `program` prints as JSON; benchmarks/ can be imported, cache is Triton's folder."""
    settings = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=settings | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
