# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rounds that serve one text after another: nothing of the last one is left in the next."""

import gc
from contextlib import ExitStack
from weakref import ref

import pytest
import torch

from hybridspec import LLM, SamplingParams
from hybridspec.core.errors import OptionError
from hybridspec.engine import opening
from hybridspec.engine.kept import ROOM, Kept, room_for
from hybridspec.engine.loop import Tally, decode
from hybridspec.policy.latency import Latency

SHORT = SamplingParams(max_new_tokens=12)
PROMPTS = ("abc def ghi", "x", "abc def", "0123456789" * 3)


LATENCY = Latency.measured({1: [1 + n / 50 for n in range(16)]}, plain={1: 0.9})


@pytest.fixture
def made(tiny_target, tiny_drafter):
    def make(policy):
        """Without a clock, and without what earlier drafts taught: a run repeats itself."""
        llm = LLM(tiny_target, draft_model=tiny_drafter, policy=policy, device="cpu")
        if llm._experience is not None:
            llm._experience.latency = LATENCY
            llm._experience.clock = llm._experience.learning = None
        return llm

    make.target, make.drafter = tiny_target, tiny_drafter
    return make


@pytest.fixture
def begun(monkeypatch):
    """Every request for which states are made."""
    found = []
    empty = opening.Request.empty

    def noted(*arguments, **options):
        found.append(empty(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(opening.Request, "empty", noted)
    return found


def rounds_of(completion):
    return completion.token_ids, completion.stats.lengths, completion.stats.rounds


@pytest.mark.parametrize("policy", ["plain", "fixed", "hybrid"])
def test_a_text_after_others_is_what_it_is_alone(made, begun, policy):
    """Round for round."""
    llm = made(policy)
    for prompt in (*PROMPTS, *PROMPTS):
        if policy == "hybrid":
            llm._experience.drafting.__init__()  # it outlives a text
        found = rounds_of(llm.generate(prompt, SHORT))
        assert found == rounds_of(made(policy).generate(prompt, SHORT))
    assert len(begun) == 1 + 2 * len(PROMPTS)  # one for all texts of the first, and each other's


def test_what_stood_in_the_states_does_not_matter(made, begun):
    llm = made("fixed")
    wanted = llm.generate(PROMPTS[0], SHORT)
    request = begun[0]
    for tensor in (request.target.keys, request.target.values, request.target.recurrent):
        tensor.fill_(torch.nan)
    request.target.conv.fill_(torch.inf)
    request.draft.keys.fill_(torch.nan)
    request.draft.values.fill_(torch.nan)
    assert llm.generate(PROMPTS[0], SHORT).token_ids == wanted.token_ids
    assert len(begun) == 1


def test_two_streams_at_once_do_not_share(made, begun):
    llm = made("hybrid")
    wanted = [llm.generate(prompt, SHORT).token_ids for prompt in PROMPTS[:2]]
    streams = [llm.stream(prompt, SHORT) for prompt in PROMPTS[:2]]
    found = [[], []]
    for chunks in zip(*streams, strict=False):
        for ids, chunk in zip(found, chunks, strict=True):
            ids += chunk.token_ids
    for ids, stream in zip(found, streams, strict=True):
        ids += [token for chunk in stream for token in chunk.token_ids]
    assert [tuple(ids) for ids in found] == wanted
    assert len(begun) == 2


def test_streams_that_take_turns_are_no_trials_to_each_other(tiny_target, tiny_drafter):
    """What is learnt is one; where a text stands, and how it differs, is its own."""
    llm = LLM(tiny_target, draft_model=tiny_drafter, device="cpu")
    llm._experience.latency, llm._experience.clock = LATENCY, None
    shared = llm._experience.learning.state
    with ExitStack() as opened:
        texts = [
            opened.enter_context(llm.opening.text(llm.pair.tokenizer.encode(prompt), 40))
            for prompt in PROMPTS
        ]
        streams = [decode(rounds, Tally()) for rounds in texts]
        for _ in range(4):
            for stream in streams:
                next(stream)
        learnt = [rounds.policy.learning for rounds in texts]
        for rounds, own in zip(texts, learnt, strict=True):
            assert own.slope is shared.slope
            assert own.exploration.purse is shared.exploration.purse
            assert rounds.policy.tables.intercepts is own.served
            assert int(own.exploration.reached) == int(rounds.request.ledger.length)
            assert int(own.exploration.trial) == 0
        residuals = [float(own.residual) for own in learnt]
        assert all(residuals)
        llm.generate(PROMPTS[0], SHORT)
        assert [float(own.residual) for own in learnt] == residuals


def test_a_stream_that_is_left_early_spoils_nothing(made, begun):
    llm = made("hybrid")
    wanted = llm.generate(PROMPTS[0], SHORT).token_ids
    stream = llm.stream(PROMPTS[3], SHORT)
    next(stream)
    next(stream)
    stream.close()
    assert llm.generate(PROMPTS[0], SHORT).token_ids == wanted
    assert len(begun) == 1


def test_a_stream_that_nobody_reads_takes_nothing(made, begun):
    llm = made("fixed")
    streams = [llm.stream(prompt, SHORT) for prompt in PROMPTS]
    assert not begun
    del streams
    llm.generate(PROMPTS[0], SHORT)
    assert len(begun) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_prompt_whose_reading_is_broken_off_spoils_nothing(made, begun, monkeypatch, error):
    llm = made("hybrid")
    wanted = rounds_of(llm.generate(PROMPTS[0], SHORT))

    def broken(*arguments, **options):
        read_prompt(*arguments, **options)
        raise error

    read_prompt = opening.read_prompt
    with monkeypatch.context() as patched:
        patched.setattr(opening, "read_prompt", broken)
        with pytest.raises(error):
            llm.generate(PROMPTS[3], SHORT)
    llm._experience.drafting.__init__()  # it outlives a text
    assert rounds_of(llm.generate(PROMPTS[0], SHORT)) == wanted
    assert len(begun) == 1


@pytest.mark.parametrize("policy", ["plain", "fixed", "hybrid"])
@pytest.mark.parametrize("made_inside", [False, True])
@pytest.mark.parametrize("inside", [(True, False), (False, True), (True, True)])
def test_a_caller_may_be_in_inference_mode_or_not(made, policy, made_inside, inside):
    wanted = made(policy).generate(PROMPTS[0], SHORT).token_ids
    with torch.inference_mode(made_inside):
        llm = LLM(made.target, draft_model=made.drafter, policy=policy, device="cpu")
    for is_inside in inside:
        with torch.inference_mode(is_inside):
            assert llm.generate(PROMPTS[0], SHORT).token_ids == wanted
    llm.acceptance_report()


def test_a_longer_text_gets_more_room_and_the_roomier_is_kept(begun, made, monkeypatch):
    monkeypatch.setattr("hybridspec.engine.kept.ROOM", 16)
    llm = made("fixed")
    for prompt, count in (("a" * 20, 1), ("b" * 60, 2), ("a" * 20, 2), ("b" * 60, 2)):
        llm.generate(prompt, SHORT)
        assert len(begun) == count


def test_room_is_a_multiple_that_the_model_has_positions_for():
    for positions in (1, ROOM - 1, ROOM, ROOM + 1, 5 * ROOM - 7):
        room = room_for(positions, 10**6)
        assert positions <= room < positions + ROOM
        assert room % ROOM == 0
    assert room_for(700, 900) == 900
    assert room_for(900, 900) == 900
    assert room_for(901, 900) == 901


def test_what_is_kept_makes_way_for_a_text_that_needs_its_memory(made, begun, monkeypatch):
    monkeypatch.setattr("hybridspec.engine.kept.ROOM", 1)
    llm = made("fixed")
    plain = llm.using(policy="plain")
    for each in (llm, plain):
        each.generate(PROMPTS[0], SHORT)
    held = [ref(request.target.keys) for request in begun]
    begun.clear()
    needed = llm.pair.memory.needed(60, is_loaded=True)

    def free(device):
        gc.collect()
        return needed if all(each() is None for each in held) else needed - 1

    monkeypatch.setattr(opening, "free_bytes", free)
    longer = SamplingParams(max_new_tokens=ROOM)
    with pytest.raises(OptionError, match="positions need"):
        llm.generate("a" * 60, longer)
    llm.generate("a" * 48, SHORT)
    assert all(each() is None for each in held)


def test_of_two_the_roomier_is_kept_and_given_once():
    class Fake:
        def __init__(self, positions):
            self.request = self
            self.positions = positions

    kept, small, large = Kept(), Fake(8), Fake(64)
    assert kept.take(1) is None
    for first, second in ((small, large), (large, small)):
        kept.put(first)
        kept.put(second)
        assert kept.take(65) is None
        assert kept.take(64) is large
        assert kept.take(1) is None
    kept.put(small)
    kept.drop()
    assert kept.take(1) is None
