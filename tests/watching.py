# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What operations of PyTorch do on the side: memory that they take, copies between devices.

Triton's launches are not seen: they take no memory and stay on their device.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

PRODUCTS = {"matmul", "linear", "mm", "bmm", "addmm", "baddbmm"}


def tensors(values: object) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class Allocations(TorchDispatchMode):
    """Bytes of each tensor that is no view of an operation's arguments, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in tensors((args, kwargs))}
        new = [x for x in tensors(found) if x.untyped_storage()._cdata not in given]
        self.sizes += [x.untyped_storage().nbytes() for x in new]
        return found


class Crossings(TorchDispatchMode):
    """Bytes of each tensor that an operation reads on one device and writes on another."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        touched = tensors((args, kwargs, found))
        if len({x.device.type for x in touched}) > 1:
            self.sizes.append(max(x.nbytes for x in touched))
        return found


class Rounding(TorchDispatchMode):
    """Products take and give numbers of a narrower dtype, as on a device that computes in it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.products = dtype, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        self.products += 1
        return self._rounded(func(*tree_map(self._rounded, args), **(kwargs or {})))

    def _rounded(self, value: object) -> object:
        is_float = isinstance(value, Tensor) and value.dtype == torch.float32
        return value.to(self.dtype).float() if is_float else value
