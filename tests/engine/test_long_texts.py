# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What shows only after many rounds: drift of a state, a drafter that has rested, a lost token."""

import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybridspec import LLM, SamplingParams
from hybridspec.models.dflash import RING_ROWS
from hybridspec.policy.policy import Fixed
from tests.decoding import Walk, begin, differing, drafted, load, plain, scripted
from tests.tiny import write_target
from tests.tolerances import DRAFTER, distance

pytestmark = pytest.mark.usefixtures("inference")


def test_a_thousand_tokens_with_and_without_drafts(tmp_path):
    """Plain and drafted rounds in random order, of random lengths, with random luck."""
    target = load(write_target(tmp_path, max_position_embeddings=4096))
    prompt, dice = b"def area(r):\n    return", random.Random(0)
    walk = Walk(target, prompt, 1020)
    right = [dice.choice((0, 0, 1, 2, 3, 15)) for _ in range(1000)]
    rounds = scripted(target, prompt, walk.ids, right=right, budget=2000)
    found, number, compared = walk.ids[:1], 0, 0
    while len(found) <= 1000:
        rounds.policy = Fixed(dice.choice((1, 2, 3, 5, 8, 16)))
        found += (drafted if dice.random() < 0.5 else plain)(rounds).tokens
        number += 1
        if len(found) >= 50 * (compared + 1):
            compared += 1
            assert differing(rounds.request.target, walk.states[len(found) - 1]) == []
    assert found == walk.ids[: len(found)]
    assert number >= 300
    assert compared >= 20


@pytest.fixture
def counting(tmp_path):
    """A checkpoint that counts: after byte i it writes byte i + 1, whatever its layers add."""
    directory = write_target(tmp_path / "counting")
    tensors = load_file(directory / "model.safetensors")
    for name in tensors:
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")):
            tensors[name] *= 0.1
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].roll(1, dims=0).contiguous()
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_a_count_is_complete_and_in_order(counting, tiny_drafter):
    """No number left out or said twice, whatever the policy; drafts of one row are all wrong."""
    want = bytes(range(ord("("), ord("(") + 50)).decode()
    fixed = LLM(counting, draft_model=tiny_drafter, policy="fixed")
    for mode in ("exact", "fast"):
        for length in (1, 2, 5, 16):
            llm = fixed.using(policy="fixed", length=length, mode=mode)
            assert llm.generate("'", SamplingParams(max_new_tokens=50)).text == want
    target, ids = load(counting), list(want.encode())
    for right in ([0] * 50, [15] * 50, [0, 3, 0, 15, 1, 7, 2] * 8):
        rounds, found = scripted(target, b"'", ids, right=right, budget=50), ids[:1]
        while len(found) < 50:
            found += drafted(rounds).tokens
        assert bytes(found).decode() == want


class Listening:
    """A drafter of which each block is kept, by the position of its anchor."""

    def __init__(self, real):
        self.real, self.blocks = real, {}
        self.empty_state, self.take = real.empty_state, real.take

    def propose(self, anchor, state):
        block = self.real.propose(anchor, state)
        self.blocks[state.injected] = block
        return block


@pytest.mark.parametrize(
    ("pair", "before", "rounds", "after"),
    [("tiny", 5, 40, 40), ("tiny", 5, 150, 20), ("embedded", 1, 60, 5)],
)
def test_after_a_pause_drafts_are_those_of_a_run_that_never_paused(
    tiny_target, tiny_drafter, pair, before, rounds, after
):
    """Rounds without drafts, some fill the ring. The other run drafts at every position."""
    names = {"model": tiny_target, "draft_model": tiny_drafter} if pair == "tiny" else {}
    llm = LLM(**names, policy="fixed")
    target, drafter = llm.pair.target, Listening(llm.pair.drafter)
    prompt = llm.pair.tokenizer.encode("x1 = 1\nx2 = 2\nx3 = 3\nx4 = 4\n")
    rested = begin(target, prompt, drafter=drafter, policy=Fixed(16), budget=600)
    text, accepted = [int(rested.request.ledger.anchor)], {}
    for rests in [False] * before + [True] * rounds + [False] * after:
        entry = plain(rested) if rests else drafted(rested)
        state = rested.request.draft
        assert state.waiting <= RING_ROWS
        assert state.injected + state.waiting == int(rested.request.target.length)
        if not rests:
            accepted[state.injected] = len(entry.tokens) - 1
        text += entry.tokens
    found = drafter.blocks
    drafter = Listening(llm.pair.drafter)
    steady = begin(target, prompt, drafter=drafter, policy=Fixed(1), budget=600)
    while int(steady.request.target.length) < int(rested.request.target.length):
        steady.drafted_round()
    assert len(found) == before + after
    assert sum(accepted.values()) > (8 if pair == "embedded" else -1)
    for position, block in found.items():
        want = drafter.blocks[position]
        assert torch.equal(block.tokens, want.tokens)
        assert torch.allclose(block.log_odds, want.log_odds, atol=1e-3)
        rest = text[position - len(prompt) + 1 :]
        right = [a == b for a, b in zip(want.tokens[1:].tolist(), rest, strict=False)]
        assert accepted[position] == [*right, False].index(False)
    for ours, theirs in zip(context_of(rested), context_of(steady), strict=True):
        assert distance(ours, theirs) < DRAFTER


def context_of(rounds):
    """The drafter's keys and values of all committed positions."""
    state = rounds.request.draft
    rounds.drafter.real.inject(state)
    assert state.injected == int(rounds.request.target.length)
    return [x[:, :, : state.injected] for x in (state.keys, state.values)]
