# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Drafting that rests and resumes within a text and from one text to the next."""

from itertools import groupby

import pytest

from hybridspec import LLM, SamplingParams
from hybridspec.engine.loop import Tally, decode
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.drafting import MEMORY
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Hybrid
from tests.decoding import begin, load, plain_ids
from tests.tiny import ScriptedDrafter, write_target

pytestmark = pytest.mark.usefixtures("inference")
PROMPT = b"1, 2, 3, 4, "
LOST = 100
"""plain steps that pay for a lost round under the table below"""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return load(write_target(tmp_path_factory.mktemp("target"), max_position_embeddings=1024))


def test_drafting_rests_while_no_draft_fits_and_resumes_when_they_do(target):
    ids = plain_ids(target, PROMPT, 600)
    drafter = ScriptedDrafter(script=ids, prompt=len(PROMPT), right=[0] * (MEMORY + 2))
    policy = Hybrid(
        acceptance=Acceptance(slope=0.0, intercepts=(2.0,) * 15),
        latency=Latency.measured({0: [1.25] * 16}, plain={0: 1.0}),
    )
    rounds = begin(target, PROMPT, drafter=drafter, policy=policy, budget=600)
    kinds, tally, drafted = [], Tally(), 0
    emissions = decode(rounds, tally)
    found = list(next(emissions).token_ids)
    for emission in emissions:
        found += emission.token_ids
        kinds.append(tally.rounds_drafted > drafted)
        drafted = tally.rounds_drafted
    assert found == ids
    stretches = [(is_drafted, len(list(own))) for is_drafted, own in groupby(kinds)]
    # two probes fail, the third begins a trial, and the text ends drafted
    assert [s[0] for s in stretches] == [True, False, True, False, True, False, True]
    drafted, pauses = [n for _, n in stretches[::2]], [n for _, n in stretches[1::2]]
    assert drafted[:3] == [MEMORY, 1, 1]
    assert all(LOST <= pause <= LOST + 1 for pause in pauses)
    assert sum(kinds) == tally.rounds_drafted < tally.rounds


def test_what_is_known_of_a_drafter_outlives_a_request(tiny_target, tiny_drafter):
    """A random drafter is never right: the second text begins as the first one ended."""
    llm = LLM(tiny_target, draft_model=tiny_drafter)
    llm._experience.latency = Latency.measured({0: [2.0] * 16}, plain={0: 1.0})
    params = SamplingParams(max_new_tokens=MEMORY + 20)
    plain = llm.using(policy="plain").generate(["ab", "cd"], params)
    first, second = llm.generate(["ab", "cd"], params)
    assert [first.token_ids, second.token_ids] == [text.token_ids for text in plain]
    assert first.stats.rounds_drafted >= MEMORY
    assert second.stats.rounds_drafted <= 1
    fresh = llm.using(policy="hybrid")
    assert fresh._experience.drafting.is_on
    assert all(text.stats.rounds_drafted == 0 for text in plain)


@pytest.mark.parametrize("budget", range(1, 20))
def test_no_row_is_read_for_a_token_that_may_not_be_emitted(target, budget):
    ids = plain_ids(target, PROMPT, 40)
    policy = Hybrid(
        acceptance=Acceptance(slope=0.0, intercepts=(9.0,) * 15),
        latency=Latency.measured({0: [1.5] * 16}, plain={0: 1.0}),
    )
    drafter = ScriptedDrafter(script=ids, prompt=len(PROMPT), right=[4] * 40)
    rounds = begin(target, PROMPT, drafter=drafter, policy=policy, budget=budget)
    tally, read = Tally(), 0
    for emission in decode(rounds, tally):
        left = budget - tally.tokens + len(emission.token_ids)
        assert tally.rows_read - read <= left
        read = tally.rows_read
    assert tally.tokens == budget
    assert tally.rounds - tally.rounds_drafted == ((budget - 1) % 5 == 1)  # one token left: plain
