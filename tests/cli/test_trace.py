# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import json
import os
import subprocess
import sys

import pytest

from hybridspec.cli import main


@pytest.fixture
def prompts(tmp_path):
    """Two prompts, one with a class."""
    lines = [{"prompt": "import os\n", "class": "library"}, {"prompt": "def add(a, b):\n"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


def test_a_trace_is_recorded_and_replayed(prompts, tmp_path, capsys):
    path = tmp_path / "trace.safetensors"
    small = ["--device", "cpu", "--max-new-tokens", "8", "--prompts", str(prompts)]
    assert main(["trace", str(path), *small]) == 0
    assert f"positions of 2 texts written to {path}" in capsys.readouterr().out
    assert main(["replay", str(path)]) == 0
    out = capsys.readouterr().out
    for policy in ("plain", "fixed:16", "moving average", "hybrid", "oracle by table"):
        assert f"\n{policy} " in out
    assert main(["replay", str(path), str(path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == second
    assert first["texts"] == 2
    assert first["policies"][0]["tokens_per_round"] == 1


def test_trace_refuses_what_it_cannot_record(refused, prompts, tmp_path):
    refused(["trace", str(tmp_path / "t"), "--max-new-tokens", "1"], "--max-new-tokens")
    refused(["trace", str(tmp_path / "none" / "t")], "none is no folder")
    refused(["trace", str(prompts)], "prompts.jsonl", "Name another file")
    assert prompts.read_text(encoding="utf-8").count("\n") == 2
    refused(["trace", str(tmp_path / "t"), "--prompts", str(tmp_path / "absent")], "absent")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a"}\n{"text": "b"}\n', encoding="utf-8")
    refused(["trace", str(tmp_path / "t"), "--prompts", str(broken)], "line 2")


def test_a_prompt_may_hold_what_ends_a_line_of_text(tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"x ={end}1"}, ensure_ascii=False) for end in "\u2028\u0085\f"]
    path.write_text("\n".join(lines), encoding="utf-8")
    small = ["--device", "cpu", "--max-new-tokens", "4", "--prompts", str(path)]
    assert main(["trace", str(tmp_path / "t"), *small]) == 0
    assert "of 3 texts" in capsys.readouterr().out


def test_trace_refuses_half_a_surrogate_pair_and_a_class_that_is_no_word(refused, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(r'{"prompt": "\ud800"}', encoding="utf-8")
    refused(["trace", str(tmp_path / "t"), "--prompts", str(path)], "surrogate")
    path.write_text('{"prompt": "x", "class": 3}', encoding="utf-8")
    refused(["trace", str(tmp_path / "t"), "--prompts", str(path)], 'a string "class"')


def test_a_path_that_is_no_text_is_printed_as_far_as_it_is(tmp_path):
    """In a process of its own: pytest takes the place of stdout."""
    path = os.fsencode(tmp_path) + b"/t\xff"
    small = ["--device", "cpu", "--max-new-tokens", "2"]
    command = [sys.executable, "-m", "hybridspec", "trace", path, *small]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == 0
    assert ended.stdout.endswith(b"/t\\udcff\n")


def test_trace_refuses_a_prompt_that_does_not_fit(refused, prompts, tmp_path):
    small = ["--device", "cpu", "--max-new-tokens", "2040", "--prompts", str(prompts)]
    refused(["trace", str(tmp_path / "t"), *small], "prompt 1 has")


def test_replay_refuses_what_is_no_trace(refused, tmp_path):
    refused(["replay"], "FILE")
    refused(["replay", str(tmp_path / "absent")], "absent")
    text = tmp_path / "text.safetensors"
    text.write_text("no trace", encoding="utf-8")
    refused(["replay", str(text)], "text.safetensors")
