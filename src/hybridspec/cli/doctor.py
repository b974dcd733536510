# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`hybridspec doctor`: what is installed, what runs here, and does a pair fit into memory."""

import pkgutil
from importlib.util import find_spec
from pathlib import Path

from hybridspec.core.errors import OptionError
from hybridspec.core.options import DeviceName, EngineOptions, check_context


def doctor(
    *,
    model: str | None = None,
    draft_model: str | None = None,
    max_context: int | None = None,
    device: DeviceName = "auto",
) -> int:
    """Print versions, device, operations, memory, the embedded pair and the files of the cache.

    Args:
        model: Checkpoint directory or hub id of the target; the embedded pair if not given.
        draft_model: Checkpoint directory or hub id of the drafter that belongs to the target.
        max_context: Positions, prompt and new tokens, to make room for; all the target has if
            not given, which need not fit.
        device: Whose memory: auto takes a CUDA device if there is one.
    """
    EngineOptions(device=device)
    if max_context is not None:
        check_context(max_context)
    _show_installation()
    if model is not None or draft_model is not None or max_context is not None:
        _show_memory(model, draft_model, max_context, device)
    return 0


def _show_installation() -> None:
    from hybridspec.bench.circumstances import commit, versions
    from hybridspec.engine.cache import cache_dir
    from hybridspec.models import embedded

    print("versions")
    for name, number in versions().items():
        print(f"  {name:12} {number}")
    print(f"  {'commit':12} {commit() or 'not a checkout'}")
    print("device")
    for line in _devices():
        print(f"  {line}")
    print("operations")
    print(f"  in PyTorch, on any device: {', '.join(_operations())}")
    print(f"  in Triton, on CUDA: {', '.join(_twins()) or 'Triton is not installed'}")
    print("embedded pair")
    for name, directory in (("target", embedded.TARGET), ("drafter", embedded.DRAFTER)):
        print(f"  {name:12} {_contents(directory)}")
    print(f"cache {cache_dir()}")
    for line in _files(cache_dir()):
        print(f"  {line}")


def _show_memory(
    model: str | None, draft_model: str | None, max_context: int | None, name: DeviceName
) -> None:
    """Print what a pair takes; raises OptionError, after the table, where it does not fit."""
    from hybridspec.core import device as devices
    from hybridspec.engine.loading import Checkpoint
    from hybridspec.engine.memory import free_bytes, gibibytes

    device = devices.pick(name)
    found = Checkpoint.found(model, draft_model, needs_drafter=False)
    memory, free = found.memory("exact", device), free_bytes(device)
    positions = max_context or memory.positions
    if positions > memory.positions:
        raise OptionError(
            f"max_context {positions} is more than the model can take: give up to "
            f"{memory.positions}."
        )
    parts = memory.parts(positions)
    print(f"memory for {positions} positions on {device.type}, estimated; nothing is loaded")
    for part, size in parts.items():
        print(f"  {part:18} {gibibytes(size):>12}")
    print(f"  {'together':18} {gibibytes(sum(parts.values())):>12}")
    print(f"  {'to load and run':18} {gibibytes(memory.needed(positions)):>12}")
    if free is not None:
        print(f"  {'free':18} {gibibytes(free):>12}")
        print(f"  {'longest that fits':18} {memory.longest(free):>8} positions")
    memory.check(max_context or 1, free)


def _devices() -> list[str]:
    import torch

    from hybridspec.core.device import describe

    lines = [f"{'cpu':12} {describe(torch.device('cpu'))}"]
    count = torch.cuda.device_count()
    lines += [f"{f'cuda:{i}':12} {describe(torch.device('cuda', i))}" for i in range(count)]
    return lines if count else [*lines, f"{'cuda':12} none"]


def _operations() -> list[str]:
    from hybridspec.kernels import reference

    return sorted(module.name for module in pkgutil.iter_modules(reference.__path__))


def _twins() -> list[str]:
    """Operations of the reference that Triton has too."""
    from hybridspec import kernels

    if find_spec("triton") is None:
        return []
    own = {module.name for module in pkgutil.iter_modules(kernels.__path__)}
    return [name for name in _operations() if name in own]


def _contents(directory: Path) -> str:
    files = [file for file in directory.rglob("*") if file.is_file()]
    if not (directory / "config.json").is_file():
        return f"missing: {directory} has no config.json; install hybridspec again"
    return f"{directory}, {_mebibytes(sum(file.stat().st_size for file in files))}"


def _files(directory: Path) -> list[str]:
    try:
        if directory.exists() and not directory.is_dir():
            return ["no folder: nothing can be kept there; name another by HYBRIDSPEC_CACHE"]
        files = sorted(file for file in directory.rglob("*") if file.is_file())
    except OSError as error:
        return [f"cannot be read: {error.strerror}"]
    return [f"{file.relative_to(directory)}, {file.stat().st_size} bytes" for file in files] or [
        "empty"
    ]


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
