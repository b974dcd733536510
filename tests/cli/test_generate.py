# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import io
import json
import logging
import signal
import subprocess
import sys

import pytest

from hybridspec.cli import main
from hybridspec.cli.statistics import describe
from tests.fakes import TEXT


class Terminal(io.StringIO):
    """A stdout that people look at."""

    def isatty(self):
        return True


@pytest.fixture
def on_terminal(fake_llm, monkeypatch):
    """Calls the command on a terminal of 16 colours and returns what it showed there."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-color")

    def call(*arguments):
        stdout = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            assert main(arguments) == 0
        return stdout.getvalue()

    return call


def test_a_pipe_gets_the_completion_alone_and_stderr_the_statistics(fake_llm, capsys):
    assert main(["generate", "import os"]) == 0
    out, err = capsys.readouterr()
    assert out == TEXT
    assert f"{len(TEXT)} tokens, all but the first in 13 rounds" in err
    assert "3.85 tokens and 3.85 rows a round" in err
    assert "   4 rows ####" in err


@pytest.mark.parametrize("word", ["none", "null", "None", "true", "1"])
def test_a_word_that_could_be_a_value_is_a_prompt(fake_llm, monkeypatch, word):
    prompts, stream = [], fake_llm.stream

    def noted(self, prompt, params=None):
        prompts.append(prompt)
        return stream(self, prompt, params)

    monkeypatch.setattr(fake_llm, "stream", noted)
    assert main(["generate", word]) == 0
    assert prompts == [word]


def test_json_is_one_object_with_the_promised_fields(fake_llm, capsys):
    assert main(["generate", "--json", "--max-new-tokens", "9", "import os"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out) == {
        "text": TEXT[:9],
        "token_ids": [ord(character) for character in TEXT[:9]],
        "finish_reason": "length",
        "stats": {
            "rounds": 2,
            "rounds_drafted": 2,
            "tokens": 9,
            "rows_read": 8,
            "drafts_accepted": 6,
            "tokens_per_round": 4.0,
            "lengths": {"4": 2},
            "seconds": 1.0,
            "tokens_per_second": 8.0,
        },
    }


@pytest.fixture
def prompts_seen(fake_llm, monkeypatch):
    seen = []
    stream = fake_llm.stream

    def watched(self, prompt, params=None):
        seen.append(prompt)
        return stream(self, prompt, params)

    monkeypatch.setattr(fake_llm, "stream", watched)
    return seen


def test_prompts_come_verbatim_from_argument_stdin_file_or_package(
    prompts_seen, monkeypatch, tmp_path
):
    text = "  # größe\r\n\t\n"
    file = tmp_path / "prompt.py"
    file.write_bytes(text.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["generate", text]) == 0
    assert main(["generate", "-"]) == 0
    assert main(["generate", "--prompt-file", str(file)]) == 0
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert main(["generate", "--prompt-file", str(file)]) == 0
    assert main(["generate", "--", "--help"]) == 0
    assert main(["generate"]) == 0
    assert prompts_seen == [text, text, text, text, "--help", "import os\n"]


def test_options_reach_the_engine(fake_llm, monkeypatch):
    made = {}

    class Watched(fake_llm):
        def __init__(self, model=None, **options):
            made.update(options, model=model)
            super().__init__(model, **options)

    monkeypatch.setattr("hybridspec.engine.llm.LLM", Watched)
    given = {
        "model": "m",
        "draft_model": "d",
        "policy": "fixed",
        "length": "3",
        "mode": "fast",
        "device": "cpu",
        "acceptance": "a.json",
        "latency": "l.json",
    }
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    assert main(["generate", "x", *flags]) == 0
    assert {name: str(made[name]) for name in given} == given
    assert made["max_context"] == 256  # room for max_new_tokens at least


def test_a_terminal_sees_the_prompt_dim_and_accepted_runs_in_colour(on_terminal):
    shown = on_terminal("generate", "import os ", "--max-new-tokens", "9")
    assert shown == "\x1b[2mimport os \x1b[0md\x1b[32mef \x1b[0mg\x1b[36mröß\x1b[0me\n"


def test_markup_and_tabs_of_a_completion_are_only_text(on_terminal):
    shown = on_terminal("generate", "[red]x[/red]", "--policy", "plain")
    assert "[red]x[/red]" in shown
    assert shown.endswith(TEXT.partition("\t")[2] + "\n")


def test_a_terminal_obeys_no_control_character_of_prompt_or_completion(
    fake_llm, on_terminal, monkeypatch
):
    monkeypatch.setattr(fake_llm, "text", "\x1b]0;title\a\b\r\x7f\x9b2J\n\t")
    shown = on_terminal("generate", "a\x1b[2J\0\tb", "--policy", "plain")
    assert shown == "\x1b[2ma␛[2J␀\tb\x1b[0m␛]0;title␇␈␍␡\\x9b2J\n\t\n"


def test_no_color_is_honoured(on_terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in on_terminal("generate", "import os", "--max-new-tokens", "9")


def test_ctrl_c_ends_with_the_statistics_so_far_and_130(fake_llm, capsys, monkeypatch):
    stream = fake_llm.stream

    def interrupted(self, prompt, params=None):
        yield from list(stream(self, prompt, params))[:3]
        signal.raise_signal(signal.SIGINT)

    def impatient(chunks):
        signal.raise_signal(signal.SIGINT)
        return describe(chunks)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(fake_llm, "stream", interrupted)
    monkeypatch.setattr("hybridspec.cli.generate.describe", impatient)
    assert main(["generate", "import os"]) == 130
    assert signal.getsignal(signal.SIGINT) == before
    out, err = capsys.readouterr()
    assert out == TEXT[:9]
    assert "9 tokens, all but the first in 2 rounds: 4.00 tokens and 4.00 rows a round" in err
    assert "interrupted" in err
    assert "Traceback" not in err


def test_each_warning_of_the_engine_is_one_sentence_on_stderr(fake_llm, capsys, monkeypatch):
    stream = fake_llm.stream

    def warning(self, prompt, params=None):
        for _ in range(2):
            logging.getLogger("hybridspec.engine").warning("do_sample is decoded greedily.")
        return stream(self, prompt, params)

    monkeypatch.setattr(fake_llm, "stream", warning)
    assert main(["generate", "import os"]) == 0
    out, err = capsys.readouterr()
    assert out == TEXT
    assert err.startswith("hybridspec: do_sample is decoded greedily.\n")
    assert err.count("do_sample") == 1


def test_version_and_help_load_neither_torch_nor_rich_commands(capsys):
    code = (
        "import sys; from hybridspec.cli import main; "
        "main(['--version']); main(['generate', '--help']); main(['generate', '--length', '3']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
