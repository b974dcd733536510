# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Standard streams that are closed, full, shared or left; Ctrl-C: in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import sys
from types import ModuleType
from tests.fakes import FakeLLM
llm = sys.modules["hybridspec.engine.llm"] = ModuleType("hybridspec.engine.llm")
llm.LLM = FakeLLM
FakeLLM.text = "größe " * 10_000
from hybridspec.cli import main
sys.exit(main())
"""
CLI = "import sys; from hybridspec.cli import main; sys.exit(main())"
BENCH = "import sys; from hybridspec.bench.__main__ import main; sys.exit(main())"
full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full"
)


def command(*arguments, **streams):
    """The command in a process of its own, over the fake engine."""
    given = [sys.executable, "-c", COMMAND, "generate", "x"]
    return subprocess.Popen([*given, *arguments], stderr=subprocess.PIPE, **streams)


def test_a_closed_pipe_ends_quietly():
    with command("--max-new-tokens=60000", stdout=subprocess.PIPE) as process:
        assert process.stdout.read(3) == b"gr\xc3"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@full
def test_a_full_disk_is_one_sentence():
    with Path("/dev/full").open("wb") as full, command(stdout=full) as process:
        assert process.stderr.read() == (
            b"hybridspec: stdout is full: make room where it goes, or send it elsewhere.\n"
        )
    assert process.returncode == 2


def test_a_pipe_gets_utf_8_whatever_the_locale(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with command("--max-new-tokens=6", stdout=subprocess.PIPE) as process:
        assert process.stdout.read() == "größe ".encode()


@full
@pytest.mark.parametrize(("prompt", "code"), [("x", 0), ("", 2)])
def test_a_full_stderr_changes_no_exit_code(prompt, code):
    arguments = [sys.executable, "-c", COMMAND, "generate", prompt, "--max-new-tokens=6"]
    with Path("/dev/full").open("wb") as disk:
        ended = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=disk)
    assert (ended.stdout, ended.returncode) == ("größe ".encode() if not code else b"", code)


@full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("program", [CLI, BENCH], ids=["cli", "bench"])
def test_help_onto_a_full_disk_is_one_sentence(monkeypatch, program, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("wb") as disk:
        ended = subprocess.run(
            [sys.executable, "-c", program, "--help"], stdout=disk, stderr=subprocess.PIPE
        )
    assert ended.stderr.startswith(b"hybridspec: stdout is full")
    assert ended.returncode == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("program", [CLI, BENCH], ids=["cli", "bench"])
def test_help_that_nobody_reads_ends_quietly(monkeypatch, program, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-c", program, "--help"], stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert (ended.stderr, ended.returncode) == (b"", 0)


@pytest.mark.parametrize(
    ("closed", "prompt", "code", "out", "err"),
    [
        (">&-", "x", 2, b"", b"hybridspec: stdout is closed"),
        ("2>&-", "x", 0, "größe ".encode(), b""),
        ("2>&-", "", 2, b"", b""),
        (">&- 2>&-", "x", 2, b"", b""),
        ("<&-", "x", 0, "größe ".encode(), b"6 tokens"),
        ("<&-", "-", 2, b"", b"hybridspec: stdin is closed"),
    ],
)
def test_closed_streams_are_no_traceback(closed, prompt, code, out, err):
    shell = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", COMMAND]
    ended = subprocess.run([*shell, "generate", prompt, "--max-new-tokens=6"], capture_output=True)
    assert (ended.returncode, ended.stdout) == (code, out)
    assert ended.stderr.startswith(err)
    assert bool(ended.stderr) == bool(err)


def test_statistics_start_on_a_line_of_their_own_where_stdout_goes_too():
    given = [sys.executable, "-c", COMMAND, "generate", "x", "--max-new-tokens=6"]
    shared = subprocess.run(given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert shared.stdout.decode().startswith("größe \n6 tokens")
    apart = subprocess.run(given, capture_output=True)
    assert (apart.stdout.decode(), apart.stderr[:8]) == ("größe ", b"6 tokens")


PRESSED = """
import atexit, signal, sys
def again():
    if "hybridspec.core.ending" in sys.modules:
        signal.raise_signal(signal.SIGINT)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder())
atexit.register(again)
"""


@pytest.mark.parametrize(
    ("program", "module"),
    [
        (CLI, "hybridspec.core.ending"),
        (BENCH, "hybridspec.core.ending"),
        (CLI, "logging"),
        (CLI, "hybridspec.cli.app"),
        (BENCH, "hybridspec.bench.options"),
        (BENCH, "hybridspec.bench.decode"),
    ],
)
def test_ctrl_c_while_importing_and_again_at_the_end_is_130(program, module):
    ended = subprocess.run(
        [sys.executable, "-c", PRESSED.format(module=module) + program, "decode"],
        capture_output=True,
    )
    assert (ended.returncode, ended.stderr) == (130, b"")
