# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What requests teach of a pair's drafts, and where that is kept."""

import json

import pytest

from hybridspec import LLM, SamplingParams
from hybridspec.kernels.reference.acceptance import WARM_UP
from hybridspec.policy.latency import Latency
from tests.tiny import write_json

PARAMS = SamplingParams(max_new_tokens=30)
FREE = Latency.measured({0: [1.0] * 16}, plain={0: 9.0})
"""drafting always pays"""


@pytest.fixture
def pair(tiny_pair):
    """A pair whose drafter has coefficients."""
    model, draft_model = tiny_pair
    found = {"model": model, "draft_model": draft_model}
    names = LLM(**found).pair.names
    table = {"key": names, "slope": 0.0, "intercepts": [-3.0] * 15}
    write_json(draft_model / "acceptance.json", table)
    return found


def taught(pair, texts=4, **options):
    """An engine after a few texts, and their tokens."""
    llm = LLM(**pair, **options)
    if llm.options.policy == "hybrid" and llm.tables.named_latency is None:
        llm._experience.latency = FREE
    return llm, [llm.generate("x" * n, PARAMS).token_ids for n in range(1, texts + 1)]


def kept(tmp_path):
    return list((tmp_path / "hybridspec-cache").rglob("acceptance.json"))


def test_what_is_learnt_outlives_requests_and_is_found_by_the_next_run(pair, tmp_path, caplog):
    llm, _ = taught(pair)
    report = llm.acceptance_report()
    assert report.labels > 20
    (path,) = kept(tmp_path)
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["key"] == llm.pair.names
    assert table["slope"] == pytest.approx(report.slope)
    assert table["intercepts"] == pytest.approx(list(report.intercepts))
    assert table["intercepts"][0] != -3.0
    caplog.clear()
    again = LLM(**pair).acceptance_report()
    assert again.intercepts == pytest.approx(table["intercepts"])
    assert again.labels == 0
    assert caplog.records == []


def test_tokens_do_not_depend_on_what_is_learnt(pair):
    llm, learning = taught(pair)
    plain = llm.using(policy="plain")
    assert learning == [plain.generate("x" * n, PARAMS).token_ids for n in range(1, 5)]


def test_a_stream_that_is_left_early_is_learnt_from_too(pair, tmp_path):
    llm = LLM(**pair)
    llm._experience.latency = FREE
    chunks = llm.stream("xy", PARAMS)
    for _ in range(5):
        next(chunks)
    assert kept(tmp_path) == []
    chunks.close()
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("option", ["acceptance", "latency"])
def test_beside_a_named_table_nothing_is_learnt_and_no_learnt_file_is_read(pair, tmp_path, option):
    llm, _ = taught(pair)
    (path,) = kept(tmp_path)
    before = path.read_bytes()
    named = {"acceptance": pair["draft_model"] / "acceptance.json", "latency": tmp_path / "l.json"}
    FREE.save(named["latency"], key=llm.tables.key())
    llm, _ = taught(pair, **{option: named[option]})
    assert llm.acceptance_report() is None
    assert llm._experience.acceptance.intercepts == (-3.0,) * 15
    assert path.read_bytes() == before


@pytest.mark.parametrize("changes", [{"key": {"target": "another"}}, {"intercepts": [0.0] * 3}])
def test_a_learnt_file_that_does_not_fit_is_left_aside_with_one_warning(
    pair, tmp_path, caplog, changes
):
    taught(pair)
    (path,) = kept(tmp_path)
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)
    caplog.clear()
    llm, _ = taught(pair)
    assert ["learnt anew" in record.getMessage() for record in caplog.records] == [True]
    assert llm._experience.acceptance.intercepts == (-3.0,) * 15


def test_without_coefficients_32_whole_blocks_come_first(tiny_pair, tmp_path):
    llm = LLM(tiny_pair[0], draft_model=tiny_pair[1])
    llm._experience.latency = FREE
    lengths, texts = {}, 0
    while sum(lengths.values()) < WARM_UP:
        assert llm.acceptance_report().reads_whole_blocks
        assert kept(tmp_path) == []
        stats = llm.generate("x" * (texts := texts + 1), SamplingParams(max_new_tokens=24)).stats
        lengths |= {n: lengths.get(n, 0) + times for n, times in stats.lengths.items()}
    assert max(lengths) == 16


def test_under_other_policies_nothing_is_learnt(pair, tmp_path):
    for policy in ("fixed", "plain"):
        llm, _ = taught(pair, policy=policy)
        assert llm.acceptance_report() is None
    assert kept(tmp_path) == []
