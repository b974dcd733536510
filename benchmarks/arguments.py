# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What scripts are asked for, checked, and the command that a result records."""

import argparse
import shlex
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


def count(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not (text.isascii() and text.isdecimal() and int(text[:18])):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def need_cuda() -> None:
    """Exit code 2 where there is no CUDA device."""
    if not torch.cuda.is_available():
        print("no CUDA device is visible here: this script measures one", file=sys.stderr)
        raise SystemExit(2)


def typed() -> str:
    """The command of this process: without its output's place, files by their names alone."""
    script, *given = sys.argv
    path = Path(script).resolve()
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)
    kept, arguments = list[str](), iter(given)
    for argument in arguments:
        if argument == "--output":
            next(arguments, None)
        elif not argument.startswith("--output="):
            kept.append(Path(argument).name if argument.startswith(("/", "~")) else argument)
    return shlex.join(["python", str(name), *kept])
