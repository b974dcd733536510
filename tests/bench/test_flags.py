# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import fields

import pytest

from hybridspec.bench.__main__ import main
from hybridspec.bench.flags import Parser, add_flags
from hybridspec.bench.options import DecodeOptions


def test_every_option_is_a_flag_with_help_and_default():
    parser = Parser()
    add_flags(parser, DecodeOptions)
    text = " ".join(parser.format_help().split())
    for field in fields(DecodeOptions):
        assert f"--{field.name.replace('_', '-')}" in text
    assert "plain,fixed,hybrid if not given" in text
    assert "Most tokens to write for each prompt. (default: 128)" in text
    assert DecodeOptions(**vars(parser.parse_args([]))) == DecodeOptions()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "decode"),
        (["decode", "--max-new-tokens", "1.5"], "'1.5'"),
        (["decode", "--max-new-tokens", "0"], "got 0"),
        (["decode", "--repeats", "many"], "'many'"),
        (["decode", "--mode", "quick"], "'quick'"),
        (["decode", "--policies", "greedy"], "'greedy'"),
        (["decode", "--batch", "4"], "--batch"),
        (["decode", "--prompts", "absent.jsonl"], "absent.jsonl"),
        (["decode", "--prompts", "x" * 5000], "xxx...xxx"),
        (["decode", "--prompts="], "--prompts: is empty"),
        (["decode", "--model", ""], "--model: is empty"),
        (["decode", "--latency="], "--latency: is empty"),
        (["decode", "--repeats", "٣"], "'٣'"),
        (["decode", "--repeats", "9" * 5000], "at most 18 digits, got '999"),
        (["decode", "--policies", "fixed:" + "9" * 5000], "999...999"),
        (["decode", "--repea", "1"], "--repea"),
        (["decode", "--shape", "qwen3.6-35b-a3b"], "give --random-weights"),
        (["decode", "--random-weights"], "give --shape"),
        (["decode", "--random-weights", "--shape", "gpt"], "'gpt' is not known"),
        (["decode", "--persistence", "half"], "'half'"),
        (["decode", "--persistence", "nan"], "'nan'"),
        (["decode", "--context", "64"], "context belongs to random weights"),
        (["decode", "--acceptance-world", "prose"], "'prose'"),
    ],
)
def test_bad_flags_end_in_one_sentence_and_code_2(fake_llm, capsys, arguments, named):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert len(err) < 400
    assert named in err
