# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Bytes of all tensors that Python can still reach: what is held, whoever holds it."""

import gc

import torch


def alive_bytes() -> int:
    """Each storage once. Without meta tensors, which hold nothing."""
    held = dict[int, int]()
    for found in gc.get_objects():
        if issubclass(type(found), torch.Tensor) and not found.is_meta:
            storage = found.untyped_storage()
            held[storage._cdata] = storage.nbytes()
    return sum(held.values())
