# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Exact mode through the front door: whatever the policy, the ids are those of plain decoding."""

import json

import pytest
import torch

from hybridspec import LLM, SamplingParams
from hybridspec.models import embedded
from hybridspec.models.state import TargetState
from tests.decoding import CPU
from tests.tolerances import NEAR_TIE

PROMPTS = [
    "import os\n",
    "x",
    '{"city": "Zurich"} ' * 10 + "again:",
    "def größe(maß):\n    return maß ** 2  # €\n",
    "class Tree:\n    def __init__(self, left, right):\n        self.left = left\n",
    "\n\n\n\n\n\n\n\n\n\n\n\n",
]
TOKENS = 48
FEW = 32
"""of the embedded pair; test_captured.py goes on with one of its texts"""
STAIRS = [1.0, 1.02, 1.3, 1.3, 1.3, 1.32, 1.34, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8, 1.8, 2.6]
FLAT = [1.0 + 0.001 * n for n in range(16)]


@pytest.fixture(scope="module")
def tiny_names(tiny_target, tiny_drafter):
    return {"model": tiny_target, "draft_model": tiny_drafter}


@pytest.fixture(scope="module")
def tiny(tiny_names):
    return LLM(**tiny_names, policy="fixed")


@pytest.fixture(scope="module")
def shipped():
    return LLM(policy="fixed")


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Writes an acceptance and a latency table of chosen content for a pair."""

    def write(names, *, seconds, slope=1.0, intercept=0.0):
        # the engine measures once; what it keeps is then overwritten
        own = tmp_path / "measured"
        monkeypatch.setenv("HYBRIDSPEC_CACHE", str(own))
        LLM(**names).generate("x", SamplingParams(max_new_tokens=1))
        (found,) = own.rglob("latency.json")
        key = json.loads(found.read_text(encoding="utf-8"))["key"]
        paths = {"latency": tmp_path / "latency.json", "acceptance": tmp_path / "acceptance.json"}
        content = {
            # a plain step costs more than any round: drafting never rests, whatever is accepted
            "latency": {"seconds": seconds, "plain": dict.fromkeys(seconds, 9.0)},
            "acceptance": {"slope": slope, "intercepts": [intercept] * 15},
        }
        for name, path in paths.items():
            path.write_text(json.dumps({"key": key} | content[name]), encoding="utf-8")
        return paths

    return write


def ids_of(llm, prompts=PROMPTS, tokens=TOKENS):
    completions = llm.generate(list(prompts), SamplingParams(max_new_tokens=tokens))
    return [c.token_ids for c in completions], completions


@pytest.fixture(scope="module")
def plain(tiny):
    return ids_of(tiny.using(policy="plain"))[0]


@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_fixed_writes_what_plain_writes(tiny, plain, length):
    ids, completions = ids_of(tiny.using(policy="fixed", length=length))
    assert ids == plain
    assert all(c.stats.lengths.keys() <= {length} for c in completions)


def test_plain_repeats_itself_and_needs_no_drafter(tiny, tiny_names, plain):
    assert ids_of(LLM(tiny_names["model"], policy="plain"))[0] == plain
    assert len(set(plain)) == len(PROMPTS)
    assert not any(len(set(ids[i : i + 32])) == 1 for ids in plain for i in range(TOKENS - 32))


@pytest.mark.parametrize("intercept", [1.0, 1.5, 2.0])
def test_hybrid_writes_what_plain_writes_at_any_length(tiny_names, tables, plain, intercept):
    paths = tables(tiny_names, seconds={"0": STAIRS, "60": FLAT}, slope=1.0, intercept=intercept)
    ids, completions = ids_of(LLM(**tiny_names, policy="hybrid", **paths))
    assert ids == plain
    lengths = {rows for c in completions for rows in c.stats.lengths}
    assert all(c.stats.rounds_drafted == c.stats.rounds for c in completions)
    assert len(lengths) >= 5
    assert lengths <= set(range(1, 17))


def test_hybrid_measures_for_itself_and_writes_the_same(tiny_names, plain, tmp_path):
    ids, _ = ids_of(LLM(**tiny_names), PROMPTS[:3])
    assert ids == plain[:3]


def test_with_two_threads_every_policy_writes_what_plain_writes(
    tiny, tiny_names, tables, set_threads
):
    paths = tables(tiny_names, seconds={"0": STAIRS, "60": FLAT}, slope=1.0, intercept=1.5)
    hybrid = LLM(**tiny_names, policy="hybrid", **paths)
    set_threads(2)  # little text: on a busy machine two threads wait for each other
    want, _ = ids_of(tiny.using(policy="plain"), PROMPTS[:1], 4)
    for llm in (tiny.using(policy="fixed", length=5), hybrid):
        assert ids_of(llm, PROMPTS[:1], 4)[0] == want


@pytest.fixture(scope="module")
def shipped_plain(shipped):
    prompts = embedded.heldout_prompts()[:4]
    return prompts, ids_of(shipped.using(policy="plain"), prompts, FEW)[0]


@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_the_embedded_pair_under_fixed_writes_what_plain_writes(shipped, shipped_plain, length):
    prompts, want = shipped_plain
    ids, completions = ids_of(shipped.using(policy="fixed", length=length), prompts, FEW)
    assert ids == want
    accepted = sum(c.stats.drafts_accepted for c in completions)
    assert accepted > 0 or length == 1


def test_the_embedded_pair_under_hybrid_writes_what_plain_writes(shipped_plain, tables):
    prompts, want = shipped_plain
    latency = tables({}, seconds={"0": STAIRS})["latency"]
    ids, completions = ids_of(LLM(latency=latency), prompts, FEW)
    assert ids == want
    assert len({rows for c in completions for rows in c.stats.lengths}) >= 3
    assert sum(c.stats.drafts_accepted for c in completions) > 0


def test_the_embedded_pair_with_two_threads_writes_what_plain_writes(shipped, set_threads):
    set_threads(2)  # little text: on a busy machine two threads wait for each other
    prompts = embedded.heldout_prompts()[:1]
    want, _ = ids_of(shipped.using(policy="plain"), prompts, 4)
    assert ids_of(shipped.using(policy="fixed", length=16), prompts[:1], 4)[0] == want


def test_fast_mode_parts_from_exact_at_near_ties_alone(tiny, plain):
    """At each first difference the gap of the two best logits says how near the tie was."""
    for options in ({"policy": "plain"}, {"policy": "fixed", "length": 5}):
        found, _ = ids_of(tiny.using(mode="fast", **options))
        for prompt, ours, theirs in zip(PROMPTS, found, plain, strict=True):
            if ours == theirs:
                continue
            place = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            text = [*tiny.pair.tokenizer.encode(prompt), *theirs[:place]]
            assert gap_after(tiny.pair.target, text) < NEAR_TIE, (prompt, place)


def gap_after(target, text):
    state = TargetState.empty(target.config, len(text), CPU)
    with torch.inference_mode():
        gaps = [target.read_prompt(x, state).gaps for x in torch.tensor(text).split(64)]
    return float(gaps[-1][-1])
