# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Every mistake ends in one sentence on stderr that names the value, and code 2."""

import io
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["generate", "--length", "0", "--policy", "fixed"], ["0", "from 1 to 16"]),
        (["generate", "--length", "17", "--policy", "fixed"], ["17", "from 1 to 16"]),
        (["generate", "--length", "-3", "--policy", "fixed"], ["-3", "from 1 to 16"]),
        (["generate", "--length", "x", "--policy", "fixed"], ["--length", "'x'", "whole number"]),
        (["generate", "--length", "1.5", "--policy", "fixed"], ["--length", "'1.5'"]),
        (["generate", "--length", "4"], ["fixed", "hybrid"]),
        (["generate", "--length", "4", "--policy", "plain"], ["fixed", "plain"]),
        (["generate", "--correction", "off", "--policy", "plain"], ["correction", "hybrid"]),
        (["generate", "--length", "none", "--policy", "fixed"], ["--length", "'none'"]),
        (["generate", "--correction", "none"], ["correction", "none", "window"]),
        (["generate", "--policy", "greedy"], ["'greedy'", "hybrid, fixed, plain"]),
        (["generate", "--mode", "quick"], ["'quick'", "exact, fast"]),
        (["generate", "--device", "tpu"], ["'tpu'", "auto, cpu, cuda"]),
        (["generate", "--max-new-tokens", "0"], ["got 0", "at least 1"]),
        (["generate", "--max-new-tokens", "-5"], ["got -5", "at least 1"]),
        (["generate", "--max-new-tokens", "many"], ["--max-new-tokens", "'many'"]),
        (["generate", "--max-new-tokens"], ["--max-new-tokens needs a value"]),
        (["generate", "--temperature", "0.5"], ["--temperature", "--help"]),
        (["generate", "--lenght=4"], ["--lenght=4", "--help"]),
        (["generate", "--json", "--json"], ["--json is given twice"]),
        (["generate", ""], ["empty"]),
        (["generate", "two", "prompts"], ["'prompts'", "quotes"]),
        (["generate", "text", "--prompt-file", "f"], ["give one of them"]),
        (["generate", "-", "--prompt-file", "f"], ["give one of them"]),
        (["generate", "text", "-"], ["give one of them"]),
        (["generate", "--prompt-file", "absent.py"], ["absent.py", "No such file"]),
        (["generate", "\udcff"], ["PROMPT", "not UTF-8"]),
        (["generat"], ["'generat'", "--help"]),
        (["bench", "encode"], ["'encode'", "bench --help"]),
        (["bench", "decode", "--policies", "plain,greedy"], ["'greedy'", "hybrid"]),
        (["bench", "decode", "--policies", "fixed:17"], ["17", "from 1 to 16"]),
        (["bench", "decode", "--repeats", "0"], ["repeats", "0"]),
        (["bench", "decode", "--prompts", "absent.jsonl"], ["absent.jsonl", "No such file"]),
        (["doctor", "--fix"], ["--fix"]),
        (["doctor", "x"], ["'x' is one argument too many; see hybridspec doctor --help"]),
        (["generate", "a", "b " * 5000], ["'b b "]),
        (["generate", "--length=٣"], ["whole number", "'٣'"]),
        (["generate", "--length=" + "9" * 5000], ["at most 18 digits, got '999"]),
        (["generate", "--prompt-file", "x" * 5000], ["xxx...xxx", "too long"]),
        (["generate", "--prompt-file", "x/" * 5000], ["x/...", "too long"]),
        (["generate", "--model", ""], ["--model is empty"]),
        (["generate", "--prompt-file="], ["--prompt-file is empty"]),
        (["generate", "--latency="], ["--latency is empty"]),
        (["bench", "decode", "--prompts="], ["--prompts is empty"]),
        (["bench", "decode", "--policies", "fixed:" + "9" * 5000], ["999...999"]),
    ],
)
def test_bad_options_are_named(fake_llm, refused, arguments, named):
    refused(arguments, *named)


@pytest.mark.parametrize(
    ("content", "named"), [(b"", "empty"), (b"caf\xe9 ", "byte 3 is not UTF-8")]
)
def test_a_bad_prompt_file_is_named(fake_llm, refused, tmp_path, content, named):
    file = tmp_path / "prompt.py"
    file.write_bytes(content)
    refused(["generate", "--prompt-file", str(file)], named)


def test_a_directory_as_prompt_file_is_named(fake_llm, refused, tmp_path):
    refused(["generate", "--prompt-file", str(tmp_path)], str(tmp_path), "directory")


@pytest.mark.parametrize(("content", "named"), [(b"", "empty"), (b"\xff", "stdin: byte 0")])
def test_bad_stdin_is_named(fake_llm, refused, monkeypatch, content, named):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    refused(["generate", "-"], named)


def test_closed_stdin_is_named(fake_llm, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    refused(["generate", "-"], "stdin is closed")


def test_without_its_extra_the_command_names_it(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    monkeypatch.delitem(sys.modules, "hybridspec.cli.app", raising=False)
    refused(["--version"], "cyclopts", 'pip install "hybridspec[cli]"')
