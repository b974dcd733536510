# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""`hybridspec doctor`: what is installed, and what runs here."""

import pkgutil
from pathlib import Path


def doctor() -> int:
    """Print versions, device, operations, the embedded pair and the files of the cache."""
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
    print("  in Triton: none in this version")
    print("embedded pair")
    for name, directory in (("target", embedded.TARGET), ("drafter", embedded.DRAFTER)):
        print(f"  {name:12} {_contents(directory)}")
    print(f"cache {cache_dir()}")
    for line in _files(cache_dir()):
        print(f"  {line}")
    return 0


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


def _contents(directory: Path) -> str:
    files = [file for file in directory.rglob("*") if file.is_file()]
    if not (directory / "config.json").is_file():
        return f"missing: {directory} has no config.json; install hybridspec again"
    return f"{directory}, {_mebibytes(sum(file.stat().st_size for file in files))}"


def _files(directory: Path) -> list[str]:
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    return [f"{file.relative_to(directory)}, {file.stat().st_size} bytes" for file in files] or [
        "empty"
    ]


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
