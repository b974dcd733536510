# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from pathlib import Path

import pytest

from hybridspec.bench.options import Arm, DecodeOptions, parse_policies, read_prompts
from hybridspec.core.errors import OptionError


def test_policies_are_read_in_the_order_given():
    assert parse_policies("hybrid, hybrid:off,fixed:8,plain,fixed", "fast") == (
        Arm(policy="hybrid", mode="fast"),
        Arm(policy="hybrid", mode="fast", correction="off"),
        Arm(policy="fixed", mode="fast", length=8),
        Arm(policy="plain", mode="fast"),
        Arm(policy="fixed", mode="fast"),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("plain,", "''"),
        ("greedy", "'greedy'"),
        ("fixed:", "''"),
        ("fixed:x", "'x'"),
        ("fixed:-1", "'-1'"),
        ("fixed:1.5", "'1.5'"),
        ("fixed:٣", "'٣' is not a number of rows"),
        ("fixed:" + "9" * 5000, "is not a number of rows"),
        ("fixed:0", "0"),
        ("fixed:17", "17"),
        ("hybrid:4", "hybrid:window"),
        ("hybrid:", "correction ''"),
        ("plain,plain", "once"),
    ],
)
def test_a_bad_policy_list_is_named(text, named):
    with pytest.raises(OptionError) as caught:
        DecodeOptions(policies=text)
    assert named in str(caught.value)


@pytest.mark.parametrize("repeats", [0, -1])
def test_repeats_below_one_are_refused(repeats):
    with pytest.raises(OptionError, match="repeats must be at least 1"):
        DecodeOptions(repeats=repeats)


def test_prompts_are_read_verbatim(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "a\\n\\tb"}\r\n{"prompt": "gr\xc3\xb6\xc3\x9fe \\u2028"}')
    assert read_prompts(file) == ["a\n\tb", "größe \u2028"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"", "not JSON"),
        (b'{"prompt": "a",}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"a"', "an object"),
        (b'{"text": "a"}', "an object"),
        (b'{"prompt": "a", "temperature": 1}', "if at all"),
        (b'{"prompt": 3}', "got 3"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "number that is too long"),
        (b'{"prompt": ""}', "empty"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "\\ud800"}', "surrogate"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line, named):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"prompt": "good"}\n' + line + b'\n{"prompt": "good"}\n')
    with pytest.raises(OptionError, match=named) as caught:
        read_prompts(file)
    assert str(caught.value).startswith(f"{file}, line 2: ")


def test_a_byte_order_mark_and_blank_lines_at_the_end_are_no_prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n{"prompt": "b"}\n\n \r\n\n')
    assert read_prompts(file) == ["a", "b"]


def test_a_prompts_file_without_a_line_or_absent_is_named(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    for file in (empty, tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(OptionError, match=str(file)):
            read_prompts(file)


RANDOM = {"shape": "qwen3.6-35b-a3b", "random_weights": True}


def test_random_weights_have_defaults_of_their_own():
    own, other = DecodeOptions(**RANDOM), DecodeOptions()
    assert own.arms == parse_policies("plain,fixed:4,fixed:8,fixed:16,hybrid", "fast")
    assert other.arms == parse_policies("plain,fixed,hybrid", "exact")
    assert (own.known_context, own.known_persistence) == (1024, 0.4)
    given = DecodeOptions(**RANDOM, policies="plain", mode="exact", context=7, persistence=0.0)
    assert given.arms == (Arm(policy="plain", mode="exact"),)
    assert (given.known_context, given.known_persistence) == (7, 0.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"shape": None}, "random_weights needs a shape"),
        ({"shape": "gpt-2"}, "shape 'gpt-2' is not known: give qwen3.6-35b-a3b"),
        ({"shape": ""}, "shape '' is not known"),
        ({"random_weights": False}, "give --random-weights"),
        ({"model": "here"}, "model does not go with .* random: leave it out"),
        ({"draft_model": "here"}, "draft_model does not go with shape"),
        ({"prompts": Path("prompts.jsonl")}, "prompts does not go with shape"),
        ({"acceptance": Path("a.json")}, "acceptance does not go with shape"),
        ({"latency": Path("l.json")}, "latency does not go with shape"),
        ({"persistence": 1.1}, "between 0 and 1, got 1.1"),
        ({"persistence": -0.1}, "between 0 and 1, got -0.1"),
        ({"persistence": 0.5, "own_router": True}, "leave out persistence or own_router"),
        ({"context": 0}, "context must be at least 1, got 0"),
    ],
)
def test_what_a_shape_does_not_go_with_is_refused(changes, named):
    with pytest.raises(OptionError, match=named):
        DecodeOptions(**RANDOM | changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("acceptance_world", "chat"), ("persistence", 0.0), ("own_router", True), ("context", 5)],
)
def test_what_belongs_to_random_weights_is_refused_without_them(name, value):
    with pytest.raises(OptionError, match=f"{name} belongs to random weights: give .*, or leave"):
        DecodeOptions(**{name: value})
