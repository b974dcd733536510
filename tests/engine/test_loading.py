# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Which pairs load, which are refused and with what words, and which tables they decode with."""

import json
import logging
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from hybridspec import LLM, HybridSpecError, SamplingParams
from hybridspec.engine.cache import cache_dir
from hybridspec.engine.tokenizer import Tokenizer
from tests.tiny import DRAFTER, STOP_ID, VOCAB, write_drafter, write_json, write_target

FEW = SamplingParams(max_new_tokens=6)


def refused(*named, **options):
    with pytest.raises(HybridSpecError) as caught:
        LLM(**options)
    for words in named:
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": 300}, ["vocab_size 300", "288"]),
        ({"vocab_size": 200}, ["vocab_size 200", "288"]),
        ({"block_size": 32}, ["block_size 32", "16 or less"]),
        ({"block_size": 17}, ["block_size 17", "16 or less"]),
        ({"dflash_config": {"mask_token_id": VOCAB, "target_layer_ids": [0]}}, ["288"]),
        ({"dflash_config": {"target_layer_ids": [0]}}, ["mask_token_id", "missing"]),
        ({"dflash_config": DRAFTER["dflash_config"] | {"target_layer_ids": [9]}}, ["layer 9"]),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(tiny_target, tmp_path, changes, named):
    directory = write_drafter(tmp_path / "drafter", **changes)
    refused(*named, model=tiny_target, draft_model=directory)


@pytest.mark.parametrize("block", [2, 3, 4, 5, 8, 16])
def test_blocks_of_any_supported_size_decode(tiny_target, tmp_path, block):
    directory = write_drafter(tmp_path / "drafter", block_size=block)
    llm = LLM(tiny_target, draft_model=directory, policy="fixed")
    found = llm.generate("x" * 129, FEW)
    assert llm.block_size == block
    assert found.stats.lengths.keys() == {block}
    assert found.token_ids == llm.using(policy="plain").generate("x" * 129, FEW).token_ids
    hybrid = llm.using(policy="hybrid").generate("x" * 129, FEW)
    assert hybrid.token_ids == found.token_ids
    with pytest.raises(HybridSpecError, match=rf"length .*{block + 1}"):
        llm.using(policy="fixed", length=block + 1)


def test_a_drafter_with_its_own_tokenizer_must_have_the_targets(tiny_target, tmp_path):
    directory = write_drafter(tmp_path / "drafter")
    source = (tiny_target / "tokenizer.json").read_text(encoding="utf-8")
    (directory / "tokenizer.json").write_text(source, encoding="utf-8")
    LLM(tiny_target, draft_model=directory)
    values = json.loads(source)
    vocab = values["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    write_json(directory / "tokenizer.json", values)
    first = min(vocab["a"], vocab["b"])
    refused(f"id {first} is", "'a'", "'b'", model=tiny_target, draft_model=directory)


def test_a_model_alone_decodes_plain_and_nothing_else(tiny_target):
    assert LLM(tiny_target, policy="plain").generate("x", FEW).stats.rounds == 5
    for policy in ("hybrid", "fixed"):
        refused("give --draft-model or --policy plain", model=tiny_target, policy=policy)


@pytest.mark.parametrize("which", ["model", "draft_model"])
def test_a_file_in_place_of_a_directory_is_named(tiny_target, tiny_drafter, tmp_path, which):
    file = tmp_path / "weights.bin"
    file.touch()
    names = {"model": tiny_target, "draft_model": tiny_drafter} | {which: file}
    refused(str(file), "is not a directory", **names)


# acceptance and latency tables


@pytest.fixture
def pair(tmp_path):
    """A pair of its own, for tests that put tables beside it."""
    return {
        "model": write_target(tmp_path / "target"),
        "draft_model": write_drafter(tmp_path / "drafter"),
    }


def acceptance_of(pair, path, **changes):
    names = LLM(**pair).pair.names
    write_json(path, {"key": names, "slope": 0.5, "intercepts": [9.0] * 15} | changes)
    return path


def lengths_of(**options):
    return LLM(**options).generate("x", SamplingParams(max_new_tokens=20)).stats.lengths


def flat_latency(pair, tmp_path):
    """A table under which sure drafts are read to the end and doubtful ones are not."""
    llm = LLM(**pair)
    llm.generate("x", SamplingParams(max_new_tokens=1))
    (measured,) = (tmp_path / "hybridspec-cache").rglob("latency.json")
    table = json.loads(measured.read_text(encoding="utf-8"))
    measured.unlink()
    table |= {"seconds": {"0": [1.0 + 0.5 * n for n in range(16)]}, "plain": {"0": 1.0}}
    write_json(tmp_path / "latency.json", table)
    return tmp_path / "latency.json"


def test_acceptance_beside_the_drafter_is_used(pair, tmp_path, caplog):
    pair["latency"] = flat_latency(pair, tmp_path)
    assert max(lengths_of(**pair)) < 16
    assert all("taken at its word" in record.getMessage() for record in caplog.records)
    assert caplog.records
    acceptance_of(pair, pair["draft_model"] / "acceptance.json")
    caplog.clear()
    assert max(lengths_of(**pair)) == 16
    assert caplog.records == []


@pytest.mark.parametrize("damage", ["key", "text", "length"])
def test_acceptance_that_is_found_and_does_not_fit_is_left_aside_with_one_warning(
    pair, tmp_path, caplog, damage
):
    pair["latency"] = flat_latency(pair, tmp_path)
    path = acceptance_of(pair, pair["draft_model"] / "acceptance.json")
    if damage == "key":
        acceptance_of(pair, path, key={"target": "another", "drafter": "another"})
    elif damage == "length":
        acceptance_of(pair, path, intercepts=[9.0] * 7)
    else:
        path.write_text('{"key": {},}', encoding="utf-8")
    caplog.clear()
    assert max(lengths_of(**pair)) < 16
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(path) in record.getMessage()


@pytest.mark.parametrize("option", ["acceptance", "latency"])
def test_a_named_table_of_another_key_is_refused(pair, tmp_path, option):
    table = {"key": {"target": "another"}, "seconds": {"0": [1.0] * 16}}
    path = tmp_path / "named.json"
    write_json(path, table | {"slope": 1.0, "intercepts": [0.0] * 15})
    refused(str(path), "another target", "'another'", **pair, **{option: path})


def test_a_measured_table_is_kept_and_found_again(pair, tmp_path, caplog):
    acceptance_of(pair, pair["draft_model"] / "acceptance.json")
    caplog.clear()
    LLM(**pair).generate("x", FEW)
    (path,) = (tmp_path / "hybridspec-cache").rglob("latency.json")
    before = path.read_bytes()
    LLM(**pair).generate("x", FEW)
    assert path.read_bytes() == before
    table = json.loads(before)
    assert len(table["seconds"]["1"]) == 16
    assert {"target", "drafter", "mode", "device", "torch", "hybridspec"} <= table["key"].keys()
    assert caplog.records == []


def test_a_measured_table_that_does_not_fit_is_measured_anew_with_one_warning(
    pair, tmp_path, caplog
):
    acceptance_of(pair, pair["draft_model"] / "acceptance.json")
    caplog.clear()
    LLM(**pair).generate("x", FEW)
    (path,) = (tmp_path / "hybridspec-cache").rglob("latency.json")
    table = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, table | {"key": table["key"] | {"torch": "1.0"}})
    LLM(**pair).generate("x", FEW)
    assert ["measured anew" in record.getMessage() for record in caplog.records] == [True]
    assert json.loads(path.read_text(encoding="utf-8"))["key"] == table["key"]


def test_modes_keep_tables_of_their_own(pair, tmp_path):
    llm = LLM(**pair)
    llm.generate("x", FEW)
    llm.using(mode="fast").generate("x", FEW)
    assert len(list((tmp_path / "hybridspec-cache").rglob("latency.json"))) == 2


def test_a_cache_that_cannot_be_written_is_said_and_no_more(pair, tmp_path, monkeypatch, caplog):
    acceptance_of(pair, pair["draft_model"] / "acceptance.json")
    caplog.clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv("HYBRIDSPEC_CACHE", str(tmp_path / "file"))
    llm = LLM(**pair)
    assert [llm.generate("x", FEW).finish_reason for _ in range(3)] == ["length"] * 3
    assert ["could not be kept" in record.getMessage() for record in caplog.records] == [True] * 2


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("HYBRIDSPEC_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_dir() == Path("/a")
    monkeypatch.delenv("HYBRIDSPEC_CACHE")
    assert cache_dir() == Path("/b/hybridspec")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache_dir() == Path("/c/.cache/hybridspec")


# stop ids


def stops(directory, **files):
    for name in ("generation_config.json", "tokenizer_config.json"):
        (directory / name).unlink(missing_ok=True)
    for name, values in files.items():
        write_json(directory / f"{name}.json", values)
    return Tokenizer(directory, vocab_size=VOCAB, eos_in_config=(9,)).stop_ids


def test_stop_ids_come_from_generation_then_tokenizer_then_config(tmp_path):
    directory = write_target(tmp_path / "target")
    end = {"eos_token": "<|endoftext|>"}
    both = {"generation_config": {"eos_token_id": [5, 6]}, "tokenizer_config": end}
    assert stops(directory, **both) == (5, 6)
    assert stops(directory, generation_config={"eos_token_id": 5}) == (5,)
    assert stops(directory, generation_config={}, tokenizer_config=end) == (STOP_ID,)
    assert stops(directory, tokenizer_config={"eos_token": {"content": "<|mask|>"}}) == (257,)
    assert stops(directory, tokenizer_config={"eos_token": "unheard of"}) == (9,)
    assert stops(directory, tokenizer_config={}) == (9,)
    assert stops(directory) == (9,)


@pytest.mark.parametrize("bad", [VOCAB, [1, VOCAB + 5], "end", [None], True, -1])
def test_a_stop_id_that_is_none_is_refused(tmp_path, bad):
    directory = write_target(tmp_path / "target")
    with pytest.raises(HybridSpecError, match=r"eos_token_id|stop id"):
        stops(directory, generation_config={"eos_token_id": bad})


def test_a_default_of_sampling_is_announced_once_and_decoded_greedily(tmp_path, caplog):
    directory = write_target(tmp_path / "target")
    want = LLM(directory, policy="plain").generate("x", FEW).token_ids
    write_json(directory / "generation_config.json", {"do_sample": True, "eos_token_id": [STOP_ID]})
    llm = LLM(directory, policy="plain")
    assert [llm.generate("x", FEW).token_ids for _ in range(2)] == [want] * 2
    assert ["greedily" in record.getMessage() for record in caplog.records] == [True]


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    directory = write_target(tmp_path / "target")
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    backend.add_tokens([f"<extra {i}>" for i in range(40)])
    backend.save(str(directory / "tokenizer.json"))
    refused("297", "288", model=directory, policy="plain")
