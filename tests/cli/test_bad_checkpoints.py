# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Damaged or unfitting checkpoints, through the real engine: one sentence, code 2."""

import json
from pathlib import Path

import pytest

from hybridspec.cli import main
from tests.tiny import DRAFTER, TARGET, write_drafter, write_json


@pytest.fixture
def refused_pair(refused):
    """Asserts that the command refuses a pair, or other arguments that come with it."""

    def check(pair, *arguments, named):
        flags = ["--model", str(pair[0]), "--draft-model", str(pair[1])]
        refused(["generate", "text", "--max-new-tokens", "2", *flags, *arguments], *named)

    return check


def test_the_sound_pair_decodes(capsys, tiny_pair):
    target, drafter = tiny_pair
    flags = ["--model", str(target), "--draft-model", str(drafter), "--max-new-tokens", "4"]
    for policy in ("plain", "fixed", "hybrid"):
        assert main(["generate", "text", "--json", "--policy", policy, *flags]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len({tuple(answer["token_ids"]) for answer in answers}) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_directory_is_named(refused_pair, tiny_pair, which):
    moved = tiny_pair[which].rename(tiny_pair[which].with_name("moved"))
    assert moved.exists()
    refused_pair(tiny_pair, named=[str(tiny_pair[which]), "does not exist"])


@pytest.mark.parametrize(
    ("which", "file"),
    [
        (0, "config.json"),
        (0, "tokenizer.json"),
        (0, "model.safetensors"),
        (1, "config.json"),
        (1, "model.safetensors"),
    ],
)
def test_a_missing_file_is_named(refused_pair, tiny_pair, which, file):
    (tiny_pair[which] / file).unlink()
    refused_pair(tiny_pair, named=[str(tiny_pair[which])])


@pytest.mark.parametrize("which", [0, 1])
def test_a_trailing_comma_is_named_by_line_and_column(refused_pair, tiny_pair, which):
    file = tiny_pair[which] / "config.json"
    file.write_text(file.read_text(encoding="utf-8")[:-1] + ",\n}", encoding="utf-8")
    refused_pair(tiny_pair, named=[str(file), "line 2", "column 1"])


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
def test_a_damaged_file_is_named(refused_pair, tiny_pair, file):
    (tiny_pair[0] / file).write_bytes(b"\xff\x00damage")
    refused_pair(tiny_pair, named=[str(tiny_pair[0] / file)])


@pytest.mark.parametrize("kind", ["qwen3_5_text", "qwen3", "llama", ""])
def test_a_dense_or_unknown_model_is_named(refused_pair, tiny_pair, kind):
    write_json(tiny_pair[0] / "config.json", TARGET | {"model_type": kind})
    refused_pair(tiny_pair, named=[repr(kind), "supported: qwen3_5_moe"])


def test_a_target_is_no_drafter(refused_pair, tiny_pair):
    named = ["Qwen3_5MoeForCausalLM", "DFlashDraftModel"]
    refused_pair((tiny_pair[0], tiny_pair[0]), named=named)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": 300}, ["300", str(TARGET["vocab_size"])]),
        ({"hidden_size": 48}, ["48", str(TARGET["hidden_size"])]),
        ({"block_size": 17}, ["17", "16"]),
        ({"dflash_config": DRAFTER["dflash_config"] | {"mask_token_id": 4096}}, ["4096"]),
        ({"dflash_config": DRAFTER["dflash_config"] | {"target_layer_ids": [0, 2, 4]}}, ["4"]),
    ],
)
def test_a_drafter_of_another_target_is_named(refused_pair, tiny_pair, tmp_path, changes, named):
    other = write_drafter(tmp_path / "other", **changes)
    refused_pair((tiny_pair[0], other), named=named)


def test_a_length_above_the_block_is_named(refused_pair, tiny_pair, tmp_path):
    short = write_drafter(tmp_path / "short", block_size=8)
    fixed = ["--policy", "fixed", "--length"]
    refused_pair((tiny_pair[0], short), *fixed, "12", named=["12", "8 rows"])


def test_a_model_without_its_drafter_is_named(refused, tiny_pair):
    target = str(tiny_pair[0])
    refused(["generate", "text", "--model", target], target, "give --draft-model or --policy plain")


def test_a_prompt_longer_than_the_positions_is_named(refused, tiny_pair, tmp_path):
    file = tmp_path / "long.py"
    file.write_text("x" * 600, encoding="utf-8")
    flags = ["--model", str(tiny_pair[0]), "--policy", "plain", "--prompt-file", str(file)]
    refused(["generate", *flags], "600 tokens", "512 positions", "shorten")


@pytest.mark.parametrize("flag", ["--acceptance", "--latency"])
@pytest.mark.parametrize("content", [None, "{,}", "[]", "{}"])
def test_a_table_that_is_missing_or_damaged_is_named(
    refused_pair, tiny_pair, tmp_path, flag, content
):
    file = Path(tmp_path / "table.json")
    if content is not None:
        file.write_text(content, encoding="utf-8")
    refused_pair(tiny_pair, flag, str(file), named=[str(file)])
