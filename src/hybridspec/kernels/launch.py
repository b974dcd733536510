# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What all Triton launches share. Imported only where there is Triton."""

import torch
from triton import knobs

from hybridspec.core.errors import HybridSpecError

INTERPRETED = knobs.runtime.interpret
"""kernels run in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1)"""


class ShapeError(HybridSpecError, ValueError):
    """A tensor whose shape, dtype or layout a kernel does not take."""


def overlaps(device: torch.device) -> bool:
    """A kernel may begin while the one before it ends (programmatic dependent launch)."""
    return not INTERPRETED and torch.cuda.get_device_capability(device) >= (9, 0)
