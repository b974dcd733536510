# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Which measurement options ask for: of checkpoints, or of a shape with random weights."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hybridspec.bench.decode import run_decode
from hybridspec.core.errors import OptionError

if TYPE_CHECKING:
    from hybridspec.bench.options import DecodeOptions
    from hybridspec.bench.report import Report


def run(
    options: "DecodeOptions",
    *,
    command: str,
    progress: Callable[[int, int], None] | None = None,
) -> "Report":
    """Measure; raises as the measurements do, and OptionError for a shape without Triton."""
    if options.shape is None:
        return run_decode(options, command=command, progress=progress)
    try:
        from hybridspec.bench.random_decode import run_random_decode
    except ModuleNotFoundError as error:
        raise OptionError(
            f"shape {options.shape} needs a CUDA device and Triton, and module {error.name} is "
            "missing: install triton."
        ) from None
    return run_random_decode(options, command=command, progress=progress)
