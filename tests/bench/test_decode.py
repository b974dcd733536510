# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import json
import signal

import pytest

from hybridspec.bench.__main__ import main
from hybridspec.bench.options import DecodeOptions
from hybridspec.core.errors import OptionError
from hybridspec.core.options import SamplingParams


@pytest.fixture
def decode(fake_llm):
    from hybridspec.bench import decode

    return decode


def arms_of(report):
    return {arm.name: arm for arm in report.arms}


def test_plain_is_measured_in_both_modes_whatever_is_asked_for(decode):
    report = decode.run_decode(DecodeOptions(policies="hybrid", max_new_tokens=9))
    assert [arm.name for arm in report.arms] == ["plain", "plain fast", "hybrid"]
    assert arms_of(report)["hybrid"].over_fixed is None


def test_figures_follow_from_the_rounds(decode):
    """9 tokens: one from the prompt, then 8 plain rounds or 2 of four, half a second each."""
    report = decode.run_decode(DecodeOptions(max_new_tokens=9, repeats=2))
    plain, fixed, hybrid = (arms_of(report)[name] for name in ("plain", "fixed:16", "hybrid"))
    assert plain.tokens_per_second.median == 2
    assert hybrid.tokens_per_second.median == 8
    assert hybrid.ms_per_round.median == 500
    assert hybrid.over_plain_exact.median == hybrid.over_plain_fast.median == 4
    assert hybrid.over_fixed is not None
    assert hybrid.over_fixed.median == 1
    assert (plain.tokens_per_round, hybrid.tokens_per_round) == (1, 4)
    assert hybrid.mean_length == 4
    assert hybrid.lengths == {4: 4}  # two rounds for each of two prompts
    assert plain.identical == fixed.identical == hybrid.identical == 2


def test_ids_that_differ_from_plain_are_counted(decode, fake_llm, monkeypatch):
    class Wrong(fake_llm):
        @property
        def text(self):
            return "x" * 9 if self.options.policy == "hybrid" else "y" * 9

    monkeypatch.setattr(decode, "LLM", Wrong)
    arms = arms_of(decode.run_decode(DecodeOptions(max_new_tokens=9)))
    assert (arms["hybrid"].identical, arms["fixed:16"].identical) == (0, 2)


def test_policies_take_turns_at_going_first(decode, fake_llm, monkeypatch):
    order = []

    class Watched(fake_llm):
        def stream(self, prompt, params=None):
            order.append((prompt, self.options.policy, self.options.mode))
            return super().stream(prompt, params)

    monkeypatch.setattr(decode, "LLM", Watched)
    decode.run_decode(DecodeOptions(policies="hybrid", max_new_tokens=9, repeats=3))
    turns = [order[i : i + 3] for i in range(3, len(order), 3)]  # the first three warm up
    assert len(turns) == 6
    assert len({turn[0][1:] for turn in turns}) == 3
    assert all(len({prompt for prompt, *_ in turn}) == 1 for turn in turns)


def test_no_figure_counts_what_a_loop_gives(decode, fake_llm):
    llm = fake_llm(policy="hybrid")
    llm.text = "first of all" + "x" * 400
    # the loop starts at index 12 + 47, in the 15th round of four; 14 rounds end before it
    run = decode.counted_run(list(llm.stream("", SamplingParams(max_new_tokens=400))))
    assert len(run.token_ids) == 400
    assert (run.counted.rounds, run.counted.tokens, run.counted.seconds) == (14, 57, 7.0)
    assert decode.total([run, run]).tokens_per_round == 4


def test_a_bad_prompt_is_named_before_any_is_decoded(fake_llm, monkeypatch, capsys, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "%s"}\n' % ("x" * 1001), encoding="utf-8")
    monkeypatch.setattr(fake_llm, "stream", lambda *_: pytest.fail("a prompt is decoded"))
    assert main(["decode", "--prompts", str(prompts)]) == 2
    assert f"{prompts}, line 2: the prompt has 1001 tokens" in capsys.readouterr().err


def test_one_policy_under_two_names_is_refused(decode):
    with pytest.raises(OptionError, match="name one policy twice"):
        decode.run_decode(DecodeOptions(policies="fixed:16,fixed"))


@pytest.fixture
def interrupted_at(fake_llm, monkeypatch):
    """Makes Ctrl-C come when the stream of that number begins."""

    def at(number):
        stream, seen = fake_llm.stream, []

        def pressed(self, prompt, params=None):
            seen.append(prompt)
            if len(seen) == number:
                signal.raise_signal(signal.SIGINT)
            return stream(self, prompt, params)

        monkeypatch.setattr(fake_llm, "stream", pressed)

    return at


@pytest.mark.parametrize(
    ("number", "sentence", "repeats"),
    [
        (2, "interrupted before the first text\n", 0),  # the first four warm up
        (5 + 7, "interrupted after 7 of 24 texts\n", 0),
        (5 + 8, "interrupted after 8 of 24 texts\n", 1),
        (5 + 23, "interrupted after 23 of 24 texts\n", 2),
    ],
)
def test_ctrl_c_reports_the_repeats_that_are_complete(
    interrupted_at, capsys, number, sentence, repeats
):
    before = signal.getsignal(signal.SIGINT)
    interrupted_at(number)
    assert main(["decode", "--json", "--max-new-tokens", "9"]) == 130
    out, err = capsys.readouterr()
    assert err == sentence
    assert (json.loads(out)["repeats"] if out else 0) == repeats
    assert signal.getsignal(signal.SIGINT) == before


def test_json_holds_what_a_number_needs(fake_llm, capsys):
    assert main(["decode", "--json", "--max-new-tokens", "9", "--repeats", "1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"device", "versions", "commit", "date", "command", "arms"} <= set(report)
    assert report["command"] == (
        "python -m hybridspec.bench decode --json --max-new-tokens 9 --repeats 1"
    )
    assert report["arms"][-1]["lengths"] == {"4": 4}
    assert set(report["arms"][-1]["tokens_per_second"]) == {"median", "low", "high"}


def test_the_table_fits_100_columns_and_states_its_terms(fake_llm, capsys):
    assert main(["decode", "--max-new-tokens", "9"]) == 0
    out = capsys.readouterr().out
    table = out.split("\n\n")[0]
    assert all(len(line) <= 100 for line in table.splitlines())
    assert "x fixed:16" in table
    for term in ("median", "interleaved", "loop", "torch", "commit"):
        assert term in out


def test_the_real_engine_decodes_the_same_ids_under_every_policy(tiny_pair, capsys, tmp_path):
    target, drafter = map(str, tiny_pair)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "import"}\n{"prompt": "x = "}\n', encoding="utf-8")
    flags = ["--model", target, "--draft-model", drafter, "--prompts", str(prompts)]
    few = ["--max-new-tokens", "6", "--repeats", "1", "--policies", "fixed:4,fixed,hybrid"]
    assert main(["decode", "--json", *flags, *few]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in report["arms"]] == [
        "plain", "plain fast", "fixed:4", "fixed:16", "hybrid",
    ]  # fmt: skip
    assert {arm["identical"] for arm in report["arms"]} == {2}
    assert report["block_size"] == 16
