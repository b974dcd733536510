# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The Python API: what it refuses, what it returns, and that its counts add up."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from hypothesis import given
from hypothesis import strategies as st

import hybridspec
from hybridspec import LLM, HybridSpecError, SamplingParams
from hybridspec.engine.loading import find
from hybridspec.engine.tokenizer import Tokenizer
from tests.tiny import VOCAB, ScriptedDrafter, write_json, write_target

PROMPT = "def größe(maß):\n"


@pytest.fixture(scope="module")
def llm(tiny_target, tiny_drafter):
    return LLM(tiny_target, draft_model=tiny_drafter, policy="fixed", length=4)


@pytest.fixture(scope="module")
def tokenizer(tiny_target):
    return Tokenizer(tiny_target, vocab_size=VOCAB, eos_in_config=())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"policy": "greedy"}, ["policy", "'greedy'", "hybrid, fixed, plain"]),
        ({"mode": "quick"}, ["mode", "'quick'", "exact, fast"]),
        ({"device": "tpu"}, ["device", "'tpu'", "auto, cpu, cuda"]),
        ({"length": 4}, ["length", "fixed", "hybrid"]),
        ({"policy": "plain", "length": 1}, ["length", "fixed", "plain"]),
        ({"policy": "fixed", "length": 0}, ["length", "0", "1 to 16"]),
        ({"policy": "fixed", "length": 17}, ["length", "17", "1 to 16"]),
        ({"policy": "fixed", "length": 2.0}, ["length", "2.0"]),
        ({"policy": "fixed", "length": True}, ["length", "True"]),
        ({"policy": "fixed", "length": "4"}, ["length", "'4'"]),
        ({"correction": "two"}, ["correction", "'two'", "off, one, window"]),
        ({"policy": "fixed", "correction": "one"}, ["correction", "hybrid", "fixed"]),
        ({"policy": "plain", "correction": "off"}, ["correction", "hybrid", "plain"]),
        ({"policy": "plain", "acceptance": "a.json"}, ["acceptance", "hybrid", "plain"]),
        ({"policy": "fixed", "latency": "l.json"}, ["latency", "hybrid", "fixed"]),
    ],
)
def test_an_option_that_is_not_supported_is_named(options, named):
    with pytest.raises(HybridSpecError) as caught:
        LLM("absent", **options)
    for words in named:
        assert words in str(caught.value)


@pytest.mark.parametrize("name", ["lenght", "temperature", "draft", "kappa"])
def test_an_unknown_argument_raises(name):
    with pytest.raises(TypeError, match=name):
        LLM("absent", **{name: 1})
    with pytest.raises(TypeError, match="top_p"):
        SamplingParams(top_p=0.9)
    with pytest.raises(TypeError):
        SamplingParams(16)


@pytest.mark.parametrize("temperature", [0.7, -1, 1e-9, float("nan")])
def test_sampling_is_refused_until_it_exists(temperature):
    with pytest.raises(HybridSpecError, match="temperature"):
        SamplingParams(temperature=temperature)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, True, "8", None])
def test_a_bad_budget_is_named(tokens):
    with pytest.raises(HybridSpecError, match=f"max_new_tokens.*{tokens!r}"):
        SamplingParams(max_new_tokens=tokens)


@pytest.mark.parametrize(("prompt", "named"), [("", "empty"), ("x" * 513, "shorten it by 1 token")])
def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_decoded(llm, prompt, named):
    for ask in (llm.generate, llm.stream):
        with pytest.raises(HybridSpecError, match=named):
            ask(prompt)


def test_a_length_above_the_block_is_refused_here_and_under_using(llm, tiny_target, tiny_drafter):
    assert llm.block_size == 16
    with pytest.raises(HybridSpecError, match="17"):
        llm.using(policy="fixed", length=17)


def test_using_shares_weights_and_leaves_the_first_as_it_was(llm):
    other = llm.using(policy="plain", mode="fast")
    assert (other.options.policy, other.options.mode, other.options.length) == (
        "plain",
        "fast",
        None,
    )
    assert (llm.options.policy, llm.options.mode, llm.options.length) == ("fixed", "exact", 4)
    assert other.pair.target.head is llm.pair.target.head
    assert llm.using(length=2).options.length == 2
    hybrid = llm.using(policy="hybrid", correction="window")
    assert hybrid.using(mode="fast").options.correction == "window"
    assert hybrid.using(policy="plain").options.correction is None
    with pytest.raises(HybridSpecError, match="correction belongs to policy hybrid"):
        hybrid.using(policy="fixed", correction="window")


def test_a_pair_without_drafter_decodes_plain_alone(tiny_target):
    llm = LLM(tiny_target, policy="plain")
    assert llm.block_size == 1
    assert llm.generate("x", SamplingParams(max_new_tokens=3)).stats.tokens_per_round == 1.0
    for policy in ("hybrid", "fixed"):
        with pytest.raises(HybridSpecError, match=f"policy {policy} needs a draft model"):
            llm.using(policy=policy)


def test_a_list_of_prompts_is_answered_in_order(llm):
    params = SamplingParams(max_new_tokens=12)
    together = llm.generate([PROMPT, "x", PROMPT], params)
    alone = [llm.generate(p, params).token_ids for p in (PROMPT, "x", PROMPT)]
    assert [c.token_ids for c in together] == alone
    assert llm.generate([], params) == []


@pytest.mark.parametrize("policy", ["plain", "fixed", "hybrid"])
def test_a_stream_joined_is_the_completion_and_its_counts_add_up(llm, policy):
    llm, params = llm.using(policy=policy), SamplingParams(max_new_tokens=40)
    chunks, whole = list(llm.stream(PROMPT, params)), llm.generate(PROMPT, params)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    ids = [i for chunk in chunks for i in chunk.token_ids]
    assert tuple(ids) == whole.token_ids
    assert whole.text == llm.pair.tokenizer.decode(ids)
    assert [c.finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == whole.finish_reason == "length"
    for number, chunk in enumerate(chunks):
        stats = chunk.stats
        assert chunk.text.startswith(chunk.drafted_text)
        assert chunk.drafts_accepted or not chunk.drafted_text
        assert stats.rounds == number
        assert stats.tokens == sum(len(c.token_ids) for c in chunks[: number + 1])
        assert stats.tokens == 1 + sum(1 + c.drafts_accepted for c in chunks[1 : number + 1])
        assert stats.rows_read == sum(rows * count for rows, count in stats.lengths.items())
        assert stats.rounds == sum(stats.lengths.values())
        assert stats.drafts_accepted == sum(c.drafts_accepted for c in chunks[: number + 1])
        assert stats.tokens - 1 == stats.rounds + stats.drafts_accepted
    assert stats.seconds > 0
    assert stats.tokens_per_second == pytest.approx((stats.tokens - 1) / stats.seconds)
    assert stats.to_json()["lengths"] == {str(k): v for k, v in sorted(stats.lengths.items())}
    if policy == "plain":
        assert (stats.tokens_per_round, stats.mean_length) == (1.0, 1.0)


def test_drafted_text_is_what_accepted_drafts_wrote():
    llm, params = LLM(policy="fixed"), SamplingParams(max_new_tokens=24)
    chunks = list(llm.stream("import os\nimport sys\n", params))
    assert any(chunk.drafted_text for chunk in chunks)
    decode = llm.pair.tokenizer.decode
    for chunk in chunks:  # this text is ASCII: no character waits for its end
        assert chunk.drafted_text == decode(list(chunk.token_ids[: chunk.drafts_accepted]))
        assert chunk.text == decode(list(chunk.token_ids))


@pytest.mark.parametrize("place", [3, 7, 8, 11])
def test_after_a_stop_id_nothing_is_shown_or_counted(tiny_target, tiny_drafter, tmp_path, place):
    """Eight right drafts a round, a stop id among them: text, ids and counts end with it."""
    prompt = "def area(r):\n    return"
    endless = LLM(tiny_target, policy="plain").generate(prompt, SamplingParams(max_new_tokens=64))
    ids = list(endless.token_ids)
    directory = write_target(tmp_path)
    write_json(directory / "generation_config.json", {"eos_token_id": [ids[place], ids[place + 1]]})
    llm = LLM(directory, draft_model=tiny_drafter, policy="fixed", length=9)
    want = llm.using(policy="plain").generate(prompt)
    right = ScriptedDrafter(script=ids, prompt=len(prompt))
    llm.opening.pair = dataclasses.replace(llm.pair, drafter=right)
    found = llm.generate(prompt)
    assert found.finish_reason == want.finish_reason == "stop"
    assert (found.text, found.token_ids) == (want.text, want.token_ids)
    assert found.text == llm.pair.tokenizer.decode(ids[: len(found.token_ids)])
    assert found.token_ids == endless.token_ids[: len(found.token_ids)]
    assert len(found.token_ids) <= place + 1
    assert found.stats.tokens == len(found.token_ids)
    assert found.stats.drafts_accepted == found.stats.tokens - 1 - found.stats.rounds


@pytest.mark.parametrize("policy", ["fixed", "hybrid"])
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_the_target_reads_the_rows_that_were_chosen_and_no_other(llm, policy, mode):
    """What is cut from a block is cut before the target runs, not after."""
    llm, read = llm.using(policy=policy, length=3 if policy == "fixed" else None, mode=mode), []
    operations = llm.pair.target.operations

    def counting(x, ids, *rest):
        read.append(int((ids >= 0).any(1).sum()))
        return operations.experts(x, ids, *rest)

    target = dataclasses.replace(
        llm.pair.target, operations=dataclasses.replace(operations, experts=counting)
    )
    llm.opening.pair = dataclasses.replace(llm.pair, target=target)
    llm.generate("x", SamplingParams(max_new_tokens=1))  # measures
    read.clear()
    stats = llm.generate(PROMPT, SamplingParams(max_new_tokens=40)).stats
    assert len(read) == len(target.layers) * stats.rounds
    assert sum(read) == len(target.layers) * stats.rows_read
    assert stats.lengths.keys() == {3} or policy == "hybrid"


def test_what_comes_out_cannot_be_changed(llm):
    completion = llm.generate("x", SamplingParams(max_new_tokens=1))
    assert completion.stats.rounds == 0
    assert completion.stats.tokens_per_round == completion.stats.tokens_per_second == 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        completion.text = ""


@pytest.mark.parametrize("policy", ["plain", "fixed", "hybrid"])
@pytest.mark.parametrize("room", [0, 1, 12, 40])
def test_a_prompt_that_fills_the_positions_ends_with_length(llm, policy, room):
    prompt = "positions " * 52
    completion = llm.using(policy=policy).generate(prompt[: 512 - room])
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == room + 1
    plain = llm.using(policy="plain").generate(prompt[: 512 - room])
    assert completion.token_ids == plain.token_ids


@given(text=st.text(max_size=12), data=st.data())
def test_only_whole_characters_are_shown(tokenizer, text, data):
    ids, stream, shown = tokenizer.encode(text), tokenizer.stream(), ""
    while ids:
        step = data.draw(st.integers(1, 4))
        shown += stream.push(tuple(ids[:step]))
        ids = ids[step:]
        assert text.startswith(shown)
    assert shown + stream.finish() == text


@given(ids=st.lists(st.integers(0, 257), max_size=20), step=st.integers(1, 5))
def test_pieces_of_any_ids_join_to_their_text(tokenizer, ids, step):
    stream, shown = tokenizer.stream(), ""
    for start in range(0, len(ids), step):
        shown += stream.push(tuple(ids[start : start + step]))
    assert shown + stream.finish() == tokenizer.decode(ids)


def test_an_unfinished_character_is_marked_at_the_end_only(tokenizer):
    ids = tokenizer.encode("a€")[:-1]
    stream = tokenizer.stream()
    assert "".join(stream.push((i,)) for i in ids) == "a"
    assert stream.finish() == "\ufffd"


def test_a_device_that_is_absent_is_named():
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(HybridSpecError, match=r"device cuda.*--device cpu"):
        LLM("absent", device="cuda")


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, hybridspec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert set(hybridspec.__all__) == set(dir(hybridspec))
    assert all(getattr(hybridspec, name) is not None for name in hybridspec.__all__)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = hybridspec.Nothing


def test_a_hub_id_goes_to_the_hub(tmp_path, monkeypatch):
    asked = []

    def fetch(name, **_):
        asked.append(name)
        if name == "owner/absent":
            raise LocalEntryNotFoundError("no such repository\nand more lines")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert find("owner/name", "model") == tmp_path
    with pytest.raises(HybridSpecError, match=r"draft model owner/absent .*: no such repository$"):
        find("owner/absent", "draft model")
    assert asked == ["owner/name", "owner/absent"]


def test_a_name_that_is_no_directory_is_named(tmp_path):
    for name in (tmp_path / "absent", str(tmp_path / "absent"), "./absent/x", "absent"):
        with pytest.raises(HybridSpecError, match="does not exist"):
            find(name, "model")


def test_a_latency_table_that_is_named_is_taken_at_its_word(tmp_path):
    """And one that is found is put right by what rounds take."""
    llm, params = LLM(device="cpu"), SamplingParams(max_new_tokens=12)
    llm.generate("def f(x):", params)
    assert llm.latency is not None
    path = tmp_path / "latency.json"
    llm.latency.save(path, key=llm.tables.key())
    named = LLM(device="cpu", latency=path)
    lengths = [named.generate("def f(x):", params).stats.lengths for _ in range(2)]
    assert lengths[0] == lengths[1]
    assert named._experience.clock is None
    assert llm._experience.clock is not None
    assert float(llm._experience.clock.weights.sum()) > 0
