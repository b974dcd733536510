# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What the README quotes is what the code says."""

import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from hybridspec.engine.round import Rounds

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_round_in_the_readme_is_the_round_in_the_file():
    assert textwrap.dedent(inspect.getsource(Rounds.drafted_round)).strip() in README


def test_the_readme_reads_in_two_minutes_and_links_to_files_that_exist():
    assert len(README.splitlines()) < 150
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target


def test_the_example_in_the_readme_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(tmp_path))
    example = README.split("```python\nfrom hybridspec")[1].split("```")[0]
    exec("from hybridspec" + example, {})
    *text, figure = capsys.readouterr().out.splitlines()
    assert text
    assert float(figure.removesuffix(" tokens a round")) >= 1


def test_the_results_in_the_readme_are_drawn_from_the_recorded_files():
    script = Path(__file__).parents[1] / "benchmarks" / "readme.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0


def test_recorded_commands_name_no_place_of_one_machine():
    for path in (Path(__file__).parents[1] / "benchmarks" / "results").glob("*.json"):
        for command in re.findall(r'"command": "([^"]*)"', path.read_text(encoding="utf-8")):
            assert not re.search(r"(^|[ =])[/~]", command), (path.name, command)
