# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import json

import pytest

from hybridspec import LLM
from hybridspec.cli import main

SMALL = ["profile", "--device", "cpu", "--repeats", "1", "--contexts"]


def test_profile_writes_a_table_that_the_engine_takes(tmp_path, capsys):
    path = tmp_path / "latency.json"
    assert main([*SMALL, "64,8", "--output", str(path)]) == 0
    told = capsys.readouterr().out
    assert "context 64: plain" in told
    assert "experts: not counted on this device" in told
    table = json.loads(path.read_text(encoding="utf-8"))
    for name in ("seconds", "plain", "draft", "commit"):
        assert list(table[name]) == ["8", "64"]
    latency = LLM(device="cpu", latency=path).latency
    assert latency is not None
    assert latency.drafted_at(36, rows=16) > 0
    assert main([*SMALL, "8", "--output", str(path)]) == 0  # an older table of its own is replaced


@pytest.mark.parametrize("contexts", ["", "8,", "8,x", "0", "-4", "1.5", "1e3"])
def test_profile_refuses_contexts_that_are_no_numbers(refused, contexts):
    refused([*SMALL[:-1], f"--contexts={contexts}"], "--contexts")


def test_profile_refuses_a_context_that_does_not_fit(refused, tmp_path):
    refused([*SMALL, "4000"], "context 4000", "2048 positions", "up to 2032")
    text = tmp_path / "short.py"
    text.write_text("def f():\n    return 1\n", encoding="utf-8")
    refused([*SMALL, "1000", "--text", str(text)], "context 1000", "--text")


def test_profile_refuses_no_repeats(refused):
    refused(["profile", "--repeats", "0"], "--repeats")


@pytest.mark.parametrize("content", ['{"key": {"target": "aa"}}', "no table"])
def test_profile_leaves_a_file_of_something_else_as_it_was(refused, tmp_path, content):
    path = tmp_path / "latency.json"
    path.write_text(content, encoding="utf-8")
    refused([*SMALL, "8", "--output", str(path)], "latency.json", "--output")
    assert path.read_text(encoding="utf-8") == content


def test_an_interrupted_profile_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "latency.json"
    assert main([*SMALL, "8", "--output", str(path)]) == 0
    before = path.read_bytes()

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("hybridspec.engine.profile.spend_commits", interrupted)
    assert main([*SMALL, "16", "--output", str(path)]) == 130
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
