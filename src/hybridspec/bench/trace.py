# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A recorded decoding: what every policy would have met at every position of some texts.

One safetensors file, VERSION in its metadata. The texts are those of plain decoding. At each of
their positions a whole block was drafted and read, and one row of it committed; so any policy's
rounds can be found in it afterwards, and no policy's choice decided what was recorded. Experts
are those of the block's own rows: beyond the first wrong draft they are not those of the text.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from hybridspec.core.errors import TraceError, shortened, shown

VERSION = "1"
DTYPES = {
    "begins": torch.int64,
    "prompts": torch.int64,
    "budgets": torch.int64,
    "tokens": torch.int32,
    "accepted": torch.uint8,
    "log_odds": torch.float32,
    "experts": torch.int16,
    "seconds": torch.float32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """P positions of some texts; G drafts a block, L layers with a router, k experts a row."""

    key: Mapping[str, str]
    """fingerprints, mode, device, dtype, versions"""
    classes: tuple[str, ...]
    """of each text"""
    begins: Tensor
    """[texts + 1] int64, rising from 0 to P: where each text's positions begin"""
    prompts: Tensor
    """[texts] int64: tokens of its prompt, the context of its first round"""
    budgets: Tensor
    """[texts] int64: tokens that could be emitted after the prompt's own, at least its positions"""
    tokens: Tensor
    """[P] int32: emitted by the row of each position, behind its anchor"""
    accepted: Tensor
    """[P] uint8, 0..G: drafts that the target agreed with before the first that it did not"""
    log_odds: Tensor
    """[P, G] float32: of the drafts"""
    experts: Tensor
    """[P, G + 1, L, k] int16: of every row of the block"""
    seconds: Tensor
    """[P, 3] float32: draft, read of the whole block, commit of one row"""

    @property
    def block_size(self) -> int:
        """Rows of the block."""
        return self.log_odds.shape[1] + 1

    def texts(self) -> Iterator[tuple[int, int, int]]:
        """Of each text: its number, first position and the one behind its last."""
        begins = cast("list[int]", self.begins.tolist())
        for number, begin in enumerate(begins[:-1]):
            yield number, begin, begins[number + 1]

    def unions(self, layer: int | None = None) -> Tensor:
        """[P, G + 1] int64: distinct experts of the first 1, 2, ... rows; None: all layers' sum."""
        layers = range(self.experts.shape[2]) if layer is None else (layer,)
        return torch.stack([_distinct(self.experts[:, :, one]) for one in layers]).sum(0)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all; raises TraceError where that fails."""
        told = {"key": dict(self.key), "classes": list(self.classes)}
        tensors = {name: getattr(self, name).contiguous() for name in DTYPES}
        half_written = path.with_suffix(f".{os.getpid()}.part")
        metadata = {"version": VERSION, "trace": json.dumps(told)}
        try:
            save_file(tensors, half_written, metadata=metadata)
            half_written.replace(path)
        except (SafetensorError, OSError) as error:
            half_written.unlink(missing_ok=True)
            raise TraceError(f"{path} cannot be written: {shortened(str(error))}.") from None

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Read it; raises TraceError that names the file and what is wrong."""
        try:
            metadata, tensors = _contents(path)
        except (SafetensorError, OSError, ValueError) as error:
            why = shortened(str(error))
            raise TraceError(f"{path} cannot be read as a trace ({why}); record it anew.") from None
        if (found := metadata.get("version")) != VERSION or "trace" not in metadata:
            raise TraceError(
                f"{path} is no trace of version {VERSION} but of {shown(found)}; record it anew."
            )
        key, classes = _told(path, metadata["trace"])
        for name, dtype in DTYPES.items():
            if name not in tensors or tensors[name].dtype != dtype:
                raise TraceError(f"{path} holds no {name} of {dtype}; record it anew.")
        kept = {field.name: tensors[field.name] for field in fields(cls) if field.name in DTYPES}
        trace = cls(key=key, classes=classes, **kept)
        _check(path, trace)
        return trace


def _contents(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    opened: Any = safe_open(path, framework="pt")
    with opened as file:
        names = cast("list[str]", file.keys())
        return file.metadata() or {}, {name: file.get_tensor(name) for name in names}


def _distinct(ids: Tensor) -> Tensor:
    """[P, N, k] -> [P, N]: distinct ids of the first 1, 2, ... rows."""
    P, N, _ = ids.shape
    seen = torch.zeros(P, N, int(ids.max()) + 1 if ids.numel() else 1, dtype=torch.bool)
    seen.scatter_(2, ids.long(), value=True)
    for row in range(1, N):
        seen[:, row] |= seen[:, row - 1]
    return seen.sum(2)


def _told(path: Path, text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    try:
        told = json.loads(text)
        key, classes = dict(told["key"]), tuple(map(str, told["classes"]))
        _ = key["target"], key["drafter"]  # without these no table could be told to fit
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TraceError(f"{path}: its key and classes are damaged; record it anew.") from None
    return {str(name): str(value) for name, value in key.items()}, classes


def _check(path: Path, trace: Trace) -> None:
    """Raise TraceError unless shapes and values fit each other."""
    if trace.log_odds.ndim != 2 or trace.experts.ndim != 4 or 0 in trace.experts.shape:
        raise TraceError(f"{path}: log_odds or experts have no such shape; record it anew.")
    texts, P = len(trace.classes), len(trace.log_odds)
    G = trace.log_odds.shape[1]
    shapes = {
        "begins": (texts + 1,),
        "prompts": (texts,),
        "budgets": (texts,),
        "tokens": (P,),
        "accepted": (P,),
        "log_odds": (P, G),
        "experts": (P, G + 1, *trace.experts.shape[2:]),
        "seconds": (P, 3),
    }
    for name, shape in shapes.items():
        if (found := tuple(getattr(trace, name).shape)) != shape:
            raise TraceError(f"{path}: {name} must be {shape}, got {found}; record it anew.")
    lengths = trace.begins.diff()
    is_sound = (
        texts > 0
        and 0 < G < 16
        and int(trace.begins[0]) == 0
        and int(trace.begins[-1]) == P
        and bool((lengths > 0).all())
        and bool((trace.budgets >= lengths).all())
        and int(trace.budgets.max()) < 2**31
        and int(trace.accepted.max()) <= G
        and bool(trace.log_odds.isfinite().all())
        and bool((trace.experts >= 0).all())
    )
    if not is_sound:
        raise TraceError(f"{path}: its texts or values are damaged; record it anew.")
