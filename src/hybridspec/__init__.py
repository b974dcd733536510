# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Lossless speculative decoding for hybrid Gated DeltaNet + mixture-of-experts models.

Importing the package imports nothing heavy: each public name is looked up when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from hybridspec.core.version import __version__

if TYPE_CHECKING:
    from hybridspec.core.errors import HybridSpecError
    from hybridspec.core.options import SamplingParams
    from hybridspec.core.records import Chunk, Completion, Stats
    from hybridspec.engine.llm import LLM

__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "HybridSpecError",
    "SamplingParams",
    "Stats",
    "__version__",
]

_HOMES = {
    "LLM": "hybridspec.engine.llm",
    "SamplingParams": "hybridspec.core.options",
    "Chunk": "hybridspec.core.records",
    "Completion": "hybridspec.core.records",
    "Stats": "hybridspec.core.records",
    "HybridSpecError": "hybridspec.core.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
