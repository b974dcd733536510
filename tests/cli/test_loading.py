# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The bar that shows what is read: on a terminal, on stderr, and gone at the end."""

import io

import pytest
from rich.console import Console

from hybridspec.cli import loading as module
from hybridspec.cli import main
from hybridspec.cli.loading import loading


class Shown(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_how_far_reading_is(monkeypatch):
    seen = Shown()
    console = Console(file=seen, force_terminal=True, width=100)
    monkeypatch.setattr(module, "Console", lambda stderr: console)
    with loading() as progress:
        progress("target", 5_000_000, 20_000_000)
    assert "reading target" in seen.getvalue()
    assert "5.0/20.0 MB" in seen.getvalue()
    assert "drafter" not in seen.getvalue()


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_where_there_is_no_terminal_nothing_is_shown(capsys, tiny_pair, json):
    target, draft = map(str, tiny_pair)
    given = ["--model", target, "--draft-model", draft, "--max-new-tokens", "4"]
    assert main(["generate", "x", "--policy", "plain", *given, *json]) == 0
    assert "reading" not in capsys.readouterr().err


def test_generate_refuses_more_tokens_than_memory_has_room_for(capsys, monkeypatch, tiny_pair):
    monkeypatch.setattr("hybridspec.engine.loading.free_bytes", lambda device: 1 << 20)
    assert main(["generate", "x", "--policy", "plain", "--model", str(tiny_pair[0])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "256 positions need" in err
    assert err.count("\n") == 1


def test_a_prompt_that_memory_has_no_room_for_is_not_shown(capsys, monkeypatch, tiny_pair):
    monkeypatch.setattr("hybridspec.engine.opening.free_bytes", lambda device: 1 << 10)
    assert main(["generate", "x", "--policy", "plain", "--model", str(tiny_pair[0])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "positions need" in err
    assert err.count("\n") == 1
