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


def check_tensor(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], *dtypes: torch.dtype
) -> None:
    """Raises ShapeError by name unless it is contiguous, of this shape and of one of the dtypes."""
    if tensor.shape != shape or tensor.dtype not in dtypes or not tensor.is_contiguous():
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ShapeError(
            f"{name} must be {wanted} {list(shape)} and contiguous, got "
            f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}, "
            f"strides {list(tensor.stride())}."
        )


def precision(dtype: torch.dtype) -> str:
    """`input_precision` of products: fp32 operands stay fp32."""
    return "ieee" if dtype == torch.float32 else "tf32"
