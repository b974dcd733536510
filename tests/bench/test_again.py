# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Results that are measured again: what is run, and that nothing is lost."""

import argparse
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import again
from benchmarks.arguments import count, typed

WRITE = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text('new'); sys.exit({code})"


@pytest.fixture
def run(monkeypatch, tmp_path, capfd):
    """Exit code of `again.py found` and the result then; before it is `old`."""
    (tmp_path / "found.json").write_text("old")

    def run(command):
        monkeypatch.setattr(again, "COMMANDS", {"found": command})
        monkeypatch.setattr(sys, "argv", ["again.py", "found", "--into", str(tmp_path)])
        return again.main(), (tmp_path / "found.json").read_text()

    return run


@pytest.mark.parametrize("code", [0, 1])
def test_a_result_that_is_written_is_kept_even_if_it_misses_what_is_asked(run, code):
    assert run(shlex.join(["-c", WRITE.format(code=code)])) == (code, "new")


@pytest.mark.parametrize("script", ["raise SystemExit(1)", "1 / 0", "pass"])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_writes_nothing_leaves_the_old_result(run, script, more):
    assert run(shlex.join(["-c", script, *more])) == (1, "old")


def test_what_is_printed_as_json_is_the_result(run):
    assert run("-c 'print(1)' --json") == (0, "1\n")


def test_an_unknown_name_is_refused_before_anything_runs(monkeypatch, capfd):
    monkeypatch.setattr(again, "COMMANDS", {"found": "-c 'raise SystemExit'"})
    monkeypatch.setattr(sys, "argv", ["again.py", "found", "lost"])
    with pytest.raises(SystemExit) as ended:
        again.main()
    assert ended.value.code == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "no result is called lost" in err


def test_every_command_names_a_script_and_options_that_it_has():
    for name, command in again.COMMANDS.items():
        first, *options = shlex.split(command)
        if first != "-m":
            script = (again.ROOT / first).read_text(encoding="utf-8")
            for option in ("--output", *(each for each in options if each.startswith("--"))):
                assert f'"{option}"' in script, (name, option)


def test_a_recorded_command_says_nothing_of_the_machine(monkeypatch):
    script = str(Path(again.__file__))
    given = ["--output", "/tmp/x.json", "--texts", "/tmp/here/texts.json", "--output=y", "--n", "3"]
    monkeypatch.setattr(sys, "argv", [script, *given])
    assert typed() == "python benchmarks/again.py --texts texts.json --n 3"


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "x", "\u0663"])
def test_a_count_that_is_none_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
        count(text)
    assert count("12") == 12
