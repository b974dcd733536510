# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a number was measured with: a speed without it cannot be compared."""

import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from hybridspec.core.device import describe, driver
from hybridspec.core.version import __version__

if TYPE_CHECKING:
    import torch

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Device, versions, commit, date and command of a measurement."""

    device: str
    driver: str | None
    """of a CUDA device; None for a CPU"""
    versions: dict[str, str]
    commit: str | None
    """None outside a checkout; ends in -dirty where files differ from the commit"""
    date: str
    """UTC, to the second"""
    command: str

    def sentence(self) -> str:
        """The same in one line, without the command."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.device}; {versions}; commit {self.commit or 'unknown'}; {self.date}"

    def to_json(self) -> dict[str, object]:
        """The same as one JSON object."""
        return {
            "device": self.device,
            "driver": self.driver,
            "versions": self.versions,
            "commit": self.commit,
            "date": self.date,
            "command": self.command,
        }


def observe(device: "torch.device", command: str) -> Circumstances:
    """The circumstances of a measurement on `device` that `command` started."""
    return Circumstances(
        device=describe(device),
        driver=driver(device),
        versions=versions(),
        commit=commit(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
    )


def versions() -> dict[str, str]:
    """Versions of what decides about speed and output; packages that are absent are left out."""
    found = {"hybridspec": __version__, "python": platform.python_version()}
    for name in ("torch", "triton", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Commit of the checkout that this package runs from; None for an installed package."""
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "hybridspec" != _PACKAGE:
        return None
    return _git("describe", "--always", "--abbrev=12", "--dirty", "--exclude=*")


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(_PACKAGE), *arguments], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
