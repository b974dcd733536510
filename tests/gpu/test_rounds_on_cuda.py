# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The same engine code on a CUDA device: captured graphs of Triton kernels."""

import pytest

from hybridspec import LLM, SamplingParams
from hybridspec.engine import graph
from hybridspec.models.embedded import heldout_prompts

pytestmark = pytest.mark.gpu

PROMPTS, TOKENS = 6, 48


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(device="cuda")


@pytest.fixture(scope="module")
def plain(llm: LLM) -> list[tuple[int, ...]]:
    return ids(llm.using(policy="plain"))


def ids(llm: LLM) -> list[tuple[int, ...]]:
    prompts = heldout_prompts("test")[:PROMPTS]
    return [llm.generate(p, SamplingParams(max_new_tokens=TOKENS)).token_ids for p in prompts]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 13, 16])
def test_fixed_lengths_write_what_plain_decoding_writes(llm, plain, length):
    assert ids(llm.using(policy="fixed", length=length)) == plain


def test_hybrid_writes_what_plain_decoding_writes(llm, plain):
    assert ids(llm.using(policy="hybrid")) == plain


def test_plain_decoding_repeats_itself(llm, plain):
    assert ids(llm.using(policy="plain")) == plain


@pytest.mark.parametrize("policy", ["plain", "fixed", "hybrid"])
def test_each_kind_of_round_is_recorded_once_for_all_texts(llm, policy, monkeypatch):
    """And a text is what it is alone."""
    again, params, record = llm.using(policy=policy), SamplingParams(max_new_tokens=TOKENS), []
    real = graph.recorded
    monkeypatch.setattr(graph, "recorded", lambda run: record.append(run) or real(run))
    prompts = heldout_prompts("test")[:PROMPTS]
    again.generate(prompts[0], params)  # measures, where no table is known
    record.clear()
    found = [again.generate(prompt, params).token_ids for prompt in prompts]
    assert len(record) <= {"plain": 0, "fixed": 0, "hybrid": 2}[policy]
    alone = [llm.using(policy=policy).generate(prompt, params).token_ids for prompt in prompts]
    assert found == alone
    assert len(record) > PROMPTS // 2  # a text of one round records nothing
