# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Tensors of a checkpoint directory, each taken once by name and shape.

A tensor that is missing, of another shape, or left over when the model is built is an error that
names it: a layout that loads wrong must not load.

What a CPU computes with is what the file holds: every tensor is read in the dtype that is stored,
and widened to float32, which rounds nothing (how kernels have it: `reading.py`). So A_log and the
norm inside a GDN layer, F32 in the official Qwen3.5 files and BF16 in those of 3.6, keep every
digit of either. Transformers differs when it is told `dtype=bfloat16`: it then rounds them too,
which moves a decay's logarithm by at most |A_log| 2^-8 of itself. Loaded with `dtype=float32` it
computes with the same numbers.
"""

import math
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from hybridspec.core.errors import CheckpointError, shortened, shown
from hybridspec.core.jsonfile import is_there
from hybridspec.models.config_fields import read_json
from hybridspec.models.reading import TensorReader

FILE_NAME = re.compile(r"[\w.+-]{1,200}\.safetensors", re.ASCII)
"""a shard's name: no way out of the directory, and nothing that a file system does not take"""
LOADED_DTYPES = {"BF16": 2, "F16": 2, "F32": 4}
"""dtypes, in safetensors' words, that weights may have, and their bytes"""
Progress = Callable[[int, int], None]
"""told the bytes read so far, and those of the whole checkpoint"""


class Weights:
    """The tensors of one checkpoint, read lazily."""

    def __init__(
        self,
        directory: Path,
        *,
        read: TensorReader,
        skip: tuple[str, ...] = (),
        progress: Progress | None = None,
    ) -> None:
        """Open all shards. Names that start with one of `skip` belong to parts that are not run."""
        self.directory = directory
        self.read, self._progress, self._done = read, progress, 0
        self._files = _open_shards(directory)
        self._left = {name for name in self._files if not name.startswith(skip)}
        self._bytes = sum(map(self._size, self._left)) if progress else 0

    def has(self, prefix: str) -> bool:
        """Whether any tensor's name starts with `prefix`."""
        return any(name.startswith(prefix) for name in self._files)

    def names(self, prefix: str) -> list[str]:
        """Names that start with `prefix`, in order."""
        return sorted(name for name in self._files if name.startswith(prefix))

    def compare(self, name: str, *shape: int) -> None:
        """Raise CheckpointError unless `name` is there in this shape; reads no number."""
        if name not in self._left:
            raise CheckpointError(f"{self.directory}: tensor {name!r} is missing.")
        file, path = self._files[name]
        stored = tuple(file.get_slice(name).get_shape())
        if stored != shape:
            raise CheckpointError(
                f"{path}: tensor {name!r} has shape {shown(stored)}, "
                f"the configuration needs {shape}."
            )

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name` as the reader gives it; raises CheckpointError unless of this shape."""
        self.compare(name, *shape)
        self._left.remove(name)
        file, path = self._files[name]
        try:
            kind = file.get_slice(name).get_dtype()
            if kind not in LOADED_DTYPES:
                raise CheckpointError(
                    f"{path}: tensor {name!r} is stored as {kind}; "
                    f"supported: {', '.join(LOADED_DTYPES)}. Quantised checkpoints do not load yet."
                )
            tensor = self.read(file, name)
        except SafetensorError as error:
            raise CheckpointError(
                f"{path}: tensor {name!r} cannot be read: {shortened(str(error))}."
            ) from None
        if tensor is None:
            raise CheckpointError(f"{path}: tensor {name!r} holds NaN or infinite numbers.")
        if self._progress is not None:
            self._done += self._size(name)
            self._progress(self._done, self._bytes)
        return tensor

    def _size(self, name: str) -> int:
        """Bytes in the file; 0 of a dtype that does not load."""
        part = self._files[name][0].get_slice(name)
        return math.prod(part.get_shape()) * LOADED_DTYPES.get(part.get_dtype(), 0)

    @contextmanager
    def complete(self) -> Generator["Weights"]:
        """Within it a model takes its tensors; one left over at the end is refused by name."""
        yield self
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(f"{self.directory}: unknown tensor {shown(names[0])}{more}.")


def require_directory(path: Path, what: str) -> Path:
    """`path` if it is a directory; else a CheckpointError that says what it should have been."""
    if not path.is_dir():
        state = "is not a directory" if path.exists() else "does not exist"
        raise CheckpointError(
            f"{what} {path} {state}; give a checkpoint directory with a config.json."
        )
    return path


def _open_shards(directory: Path) -> dict[str, tuple[Any, Path]]:
    index = directory / "model.safetensors.index.json"
    listed = _weight_map(index) if is_there(index) else None
    names = ["model.safetensors"] if listed is None else sorted(set(listed.values()))
    if names != ["model.safetensors"] and is_there(directory / "model.safetensors"):
        # Transformers reads the one file then, whatever the index says
        raise CheckpointError(
            f"{directory} holds model.safetensors beside {index.name}, which lists other files; "
            "remove the one that is not the checkpoint's."
        )
    paths = [directory / name for name in names]
    files: dict[str, tuple[Any, Path]] = {}
    for path in paths:
        file = _open(path)
        for name in file.keys():  # noqa: SIM118 (a safetensors file is no mapping)
            if name in files:
                raise CheckpointError(
                    f"{path}: tensor {shown(name)} is also in {files[name][1].name}."
                )
            files[name] = (file, path)
    if listed is not None:
        for name in sorted(listed.keys() ^ files.keys()):
            raise CheckpointError(
                f"{index}: tensor {shown(name)} is in the index or in a shard, not in both."
            )
    return files


def _weight_map(index: Path) -> dict[str, str]:
    """File of each tensor; only names of files that stand beside the index."""
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{index}: field 'weight_map' must map tensor names to files.")
    for file in listed.values():
        if not isinstance(file, str) or not FILE_NAME.fullmatch(file):
            raise CheckpointError(
                f"{index}: field 'weight_map' must name .safetensors files beside the index, "
                f"got {shown(file)}."
            )
    return listed


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:  # safetensors also says so of a file that may not be read
        state = "cannot be read" if path.exists() else "does not exist"
        raise CheckpointError(f"{path} {state}; the checkpoint is incomplete.") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is not a readable safetensors file: {shortened(str(error))}."
        ) from None
