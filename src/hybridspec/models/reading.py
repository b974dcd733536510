# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Three ways to read a tensor of a safetensors file: widened, packed for kernels, not at all.

Vectors (norms, A_log, dt_bias) are float32 in all of them, for what is computed from them when they
are taken; matrices have the reader's `dtype`.

What a reader gets wrong: `get_tensor` reads nothing. It maps the file, and pages come when they are
touched; they are the kernel's to drop, no memory of this process.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

STAGE_BYTES = 1 << 26
"""of one of two buffers between a file and a device"""


class TensorReader(Protocol):
    """How the numbers of a checkpoint come into tensors."""

    device: torch.device
    dtype: torch.dtype
    """of matrices"""

    def __call__(self, file: Any, name: str) -> Tensor | None:
        """The tensor; None where it holds NaN or infinite numbers."""
        ...


class Widened:
    """All in float32, which rounds nothing. On a CPU a float32 file is used where it is mapped."""

    dtype = torch.float32

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, file: Any, name: str) -> Tensor | None:
        """As the protocol."""
        tensor = file.get_tensor(name).to(self.device, torch.float32)
        return tensor if tensor.isfinite().all() else None


class Outline:
    """Shapes and dtypes alone, on the meta device: what would be held, without holding it."""

    device = torch.device("meta")

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, file: Any, name: str) -> Tensor | None:
        """As the protocol; no number is read, so none is found wrong."""
        shape = file.get_slice(name).get_shape()
        return torch.empty(shape, dtype=kept_dtype(shape, self.dtype), device=self.device)


class Staged:
    """Onto a device in pieces, in the file's dtype; narrowed there, once.

    Two buffers take turns: the host copies into one while the device fetches the other. Beside the
    result nothing is held but pieces, STAGE_BYTES each, on either side.
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, *, stage_bytes: int = STAGE_BYTES
    ) -> None:
        self.device, self.dtype = device, dtype
        is_cuda = device.type == "cuda"
        self._buffers = [
            torch.empty(stage_bytes, dtype=torch.uint8, pin_memory=is_cuda) for _ in range(2)
        ]
        self._fetched = [torch.cuda.Event() if is_cuda else None for _ in range(2)]

    def __call__(self, file: Any, name: str) -> Tensor | None:
        """As the protocol. Waits for the device once a tensor."""
        mapped: Tensor = file.get_tensor(name)
        shape = mapped.shape
        held = torch.empty(shape, dtype=kept_dtype(shape, self.dtype), device=self.device)
        return held if self._copy(mapped.reshape(-1), held.view(-1)) else None

    def _copy(self, source: Tensor, held: Tensor) -> bool:
        """Copy [n] to [n], piece by piece; whether all numbers are finite."""
        step = len(self._buffers[0]) // source.element_size()
        finite = torch.ones((), dtype=torch.bool, device=self.device)
        for turn, begin in enumerate(range(0, len(source), step)):
            piece = self._fetch(source[begin : begin + step], turn % 2)
            finite &= piece.isfinite().all()
            held[begin : begin + step] = piece
        return bool(finite)

    def _fetch(self, piece: Tensor, place: int) -> Tensor:
        """A piece on the device, in its own dtype."""
        fetched = self._fetched[place]
        if fetched is not None:
            fetched.synchronize()  # the buffer's last piece has left it
        buffer = self._buffers[place][: piece.nbytes].view(piece.dtype)
        buffer.copy_(piece)
        if fetched is None:
            return buffer
        there = buffer.to(self.device, non_blocking=True)
        fetched.record()
        return there


def kept_dtype(shape: tuple[int, ...] | list[int], dtype: torch.dtype) -> torch.dtype:
    """float32 for vectors, `dtype` for all else."""
    return torch.float32 if len(shape) < 2 else dtype


def host_of(device: torch.device) -> torch.device:
    """Where tables for a device are computed: the same numbers whatever decodes with them."""
    return device if device.type == "meta" else torch.device("cpu")


def same(x: Tensor, y: Tensor) -> bool | None:
    """Whether two tensors hold the same numbers; None where an outline has none."""
    return None if x.is_meta or y.is_meta else torch.equal(x, y)
