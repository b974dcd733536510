# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import json
import shlex

from hybridspec.cli import main


def test_bench_decode_prints_a_table(fake_llm, capsys):
    assert main(["bench", "decode", "--max-new-tokens", "9"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[:5]] == [
        "policy", "plain", "plain", "fixed:16", "hybrid",
    ]  # fmt: skip
    assert err == ""


def test_bench_decode_prints_one_json_object(fake_llm, capsys, tmp_path, monkeypatch):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n', encoding="utf-8")
    arguments = [
        "--json",
        "--prompts",
        str(prompts),
        "--policies",
        "hybrid,fixed:4",
        "--repeats",
        "1",
    ]
    monkeypatch.setattr("sys.argv", ["/bin/hybridspec", "bench", "decode", *arguments])
    assert main(["bench", "decode", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["prompts"] == 3
    assert [arm["name"] for arm in report["arms"]] == ["plain", "plain fast", "hybrid", "fixed:4"]
    assert report["command"] == shlex.join(["hybridspec", "bench", "decode", *arguments])
