# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Facts about the device that decodes: which one, its name, what a timing belongs to."""

import platform
import subprocess
from pathlib import Path

import torch

from hybridspec.core.errors import OptionError
from hybridspec.core.options import DeviceName


def pick(name: DeviceName) -> torch.device:
    """The device behind `--device`; raises OptionError for cuda where there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise OptionError("device cuda: no CUDA device is visible here; use --device cpu.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def describe(device: torch.device) -> str:
    """Name of the processor, and how many threads it decodes with: what a timing belongs to."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def driver(device: torch.device) -> str | None:
    """Version of the driver behind a CUDA device; None for a CPU, or if it does not tell."""
    if device.type != "cuda":
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.partition("\n")[0].strip()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
