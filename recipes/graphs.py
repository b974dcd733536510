# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Whole steps as CUDA graphs, and the facts about device and versions that every result carries."""

import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def captured(step: Callable[[], None], warmups: int = 3) -> torch.cuda.CUDAGraph:
    """The step as a graph, after warm-ups on a side stream in which kernels are compiled."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def circumstances() -> dict[str, object]:
    """Device, versions, date and command of this run."""
    names = ("torch", "triton", "fla-core", "tokenizers", "numpy")
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "absent"
    gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "versions": versions,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": "python " + " ".join(_without_folders(argument) for argument in sys.argv),
    }


def _without_folders(argument: str) -> str:
    """Machines differ in their folders; the last name says what was meant."""
    return Path(argument).name if "/" in argument else argument
