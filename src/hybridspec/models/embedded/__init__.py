# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The small trained pair that ships in the package, and prompts that it was not trained on."""

import json
from pathlib import Path

_HERE = Path(__file__).parent
TARGET = _HERE / "target"
DRAFTER = _HERE / "drafter"


def demo_prompts() -> list[str]:
    """A handful of openings that read well, from held-out files."""
    return [str(line["prompt"]) for line in _lines("demo")]


def heldout_prompts(split: str = "test") -> list[str]:
    """Openings from held-out files: split `test`, or `fit` for what may be fitted to."""
    return [str(line["prompt"]) for line in _lines("heldout") if line.get("split") == split]


def _lines(name: str) -> list[dict[str, object]]:
    text = (_HERE / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
