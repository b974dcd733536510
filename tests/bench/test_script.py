# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A scripted text through the real engine: every policy writes it, acceptance is the table's."""

import pytest
import torch

from hybridspec.bench.phases import PHASES, PhasedRounds
from hybridspec.bench.script import Script, ScriptedDrafter, ScriptedReader
from hybridspec.bench.worlds import draw_acceptances
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine.graph import CapturedRounds
from hybridspec.engine.loop import Tally, decode, start
from hybridspec.policy.acceptance import Acceptance
from hybridspec.policy.latency import Latency
from hybridspec.policy.policy import Fixed, Hybrid
from tests.bench.scripts import rounds_by_table
from tests.decoding import CPU
from tests.tiny import VOCAB

pytestmark = pytest.mark.usefixtures("inference")
CONTEXT, TOKENS, DRAFTS = 70, 90, 15
POSITIONS = CONTEXT + TOKENS + 2 * MAX_ROWS


@pytest.fixture(scope="module")
def world():
    return draw_acceptances("mixed", positions=POSITIONS, drafts=DRAFTS)


@pytest.fixture(scope="module")
def script(world):
    return Script.written(world, vocab_size=VOCAB, device=CPU)


@pytest.fixture
def begin(target, drafter, script):
    def begun(policy, *, is_plain=False):
        reader = ScriptedReader.of(target, script)
        drafts = None if is_plain else ScriptedDrafter(drafter=drafter, script=script)
        prompt = script.written_from(0, CONTEXT)
        request = start(prompt, target=reader, drafter=drafts, stop_ids=(), budget=TOKENS)
        return CapturedRounds(target=reader, drafter=drafts, policy=policy, request=request)

    return begun


def emissions(rounds):
    tally = Tally()
    found = [emission.token_ids for emission in decode(rounds, tally)]
    return found, tally


def ids(found):
    return [token for tokens in found for token in tokens]


def hybrid(*, row=0.1):
    latency = Latency.measured(
        {CONTEXT: [1.3 + row * n for n in range(DRAFTS + 1)]}, plain={CONTEXT: 1.0}
    )
    return Hybrid(acceptance=Acceptance.uninformed(DRAFTS), latency=latency)


@pytest.mark.parametrize("rows", [1, 2, 4, 16])
def test_rounds_emit_what_the_table_accepts(begin, world, script, rows):
    found, tally = emissions(begin(Fixed(rows)))
    assert ids(found) == script.written_from(CONTEXT, TOKENS)
    emitted = rounds_by_table(world.accepted.tolist(), context=CONTEXT, tokens=TOKENS, rows=rows)
    assert [len(tokens) for tokens in found[1:]] == emitted
    assert tally.lengths == {rows: len(emitted)}


def test_plain_and_hybrid_write_the_script_as_well(begin, script):
    text = script.written_from(CONTEXT, TOKENS)
    plain, tally = emissions(begin(Fixed(1), is_plain=True))
    assert ids(plain) == text
    assert (tally.rounds, tally.rounds_drafted) == (TOKENS - 1, 0)
    drafted, tally = emissions(begin(hybrid()))
    assert ids(drafted) == text
    assert len(tally.lengths) > 2
    dear, tally = emissions(begin(hybrid(row=2.0)))  # no draft pays: drafting rests
    assert ids(dear) == text
    assert tally.rounds_drafted < tally.rounds


def test_a_wrong_draft_is_never_the_text(world, script):
    right = script.text.unfold(0, 1 + DRAFTS, 1)[:POSITIONS]
    run = world.accepted.long().cumprod(1)
    assert torch.equal(script.blocks[:, 0], right[:, 0])
    assert torch.equal(script.blocks[:, 1:] == right[:, 1:], run.bool())
    assert 0 <= int(script.blocks.min()) <= int(script.blocks.max()) < VOCAB


def test_the_policy_reads_the_log_odds_of_the_anchor(begin, script):
    rounds = begin(Fixed(16))
    rounds.drafted_round()
    place = int(rounds.request.ledger.length)
    block = rounds.drafter.propose(rounds.request.ledger.anchor, rounds.request.draft)
    assert place > CONTEXT
    assert torch.equal(block.log_odds, script.log_odds[place])
    assert torch.equal(block.tokens, script.blocks[place])
    assert int(block.tokens[0]) == int(rounds.request.ledger.anchor)


def test_the_drafter_drafts_in_full(begin, script, monkeypatch):
    rounds, asked = begin(Fixed(4)), []
    own = type(rounds.drafter.drafter)
    propose = own.propose

    def spied(self, anchor, state):
        asked.append(int(anchor))
        return propose(self, anchor, state)

    monkeypatch.setattr(own, "propose", spied)
    anchor = int(rounds.request.ledger.anchor)
    rounds.drafted_round()
    assert asked == [anchor] == script.written_from(CONTEXT, 1)


def test_a_seed_repeats_itself(world):
    first, again, other = (
        Script.written(world, vocab_size=VOCAB, device=CPU, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(first.blocks, again.blocks)
    assert torch.equal(first.text, again.text)
    assert not torch.equal(first.text, other.text)


def test_rounds_in_pieces_are_the_same_rounds(begin):
    whole, _ = emissions(begin(hybrid(row=0.4)))
    phased = PhasedRounds.of(begin(hybrid(row=0.4)))
    pieces, tally = emissions(phased)
    assert pieces == whole
    assert tally.rounds_drafted > 0
    seconds = phased.watch.seconds
    assert set(seconds) == set(PHASES)
    assert all(seconds[phase] > 0 for phase in PHASES)
    assert sum(seconds.values()) < tally.seconds
    assert seconds["verify"] > seconds["policy"]


def test_plain_rounds_in_pieces_inject_when_taps_wait(begin):
    phased = PhasedRounds.of(begin(Fixed(4)))
    for _ in range(2 * MAX_ROWS + 1):
        phased.plain_round()
    draft = phased.request.draft
    assert (draft.injected, draft.waiting) == (CONTEXT + 2 * MAX_ROWS, 1)
