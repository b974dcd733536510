# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Models in which every token nearly ties with another: where rounding decides what is written.

Exact mode must write the same all the same. Fast mode may part from plain decoding, at such places
alone; the test meets some, counts them, and a fault of one per cent does not pass for a near tie.
"""

import random
from dataclasses import replace

import pytest

from tests.decoding import begin, commit, drafted, load, read_block, scripted, write_twins
from tests.tiny import write_target
from tests.tolerances import NEAR_TIE

pytestmark = pytest.mark.usefixtures("inference")

SEEDS, SPREADS, TOKENS = range(4), (1e-7, 1e-6), 64
PROMPT = b"def area(r):\n    return"


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    return [
        write_twins(tmp_path_factory.mktemp("twins") / "target", seed=seed, spread=spread)
        for seed in SEEDS
        for spread in SPREADS
    ]


def plain_with_gaps(target):
    """What plain decoding writes after its first token, and the gap of its two best logits."""
    rounds = begin(target, PROMPT)
    state, ids, gaps = rounds.request.target, [int(rounds.request.ledger.anchor)], []
    for _ in range(TOKENS):
        reading = read_block(target, ids[-1:], 1, state)
        commit(state, 1)
        ids.append(int(reading.tokens[0]))
        gaps.append(float(reading.gaps[0]))
    return ids, gaps


def parting(target, ids, dice):
    """Where drafted rounds of random length and luck first part from a text; None: nowhere."""
    right = [dice.choice((0, 1, 2, 5, 15)) for _ in range(TOKENS)]
    rounds = scripted(target, PROMPT, [*ids, *[0] * 16], right=right)
    found = ids[:1]
    while len(found) <= TOKENS:
        rounds.policy = replace(rounds.policy, rows=dice.choice((1, 2, 3, 5, 8, 16)))
        found += drafted(rounds).tokens
        for place, (ours, theirs) in enumerate(zip(found, ids, strict=False)):
            if ours != theirs:
                return place
    return None


def gaps_where_texts_part(directories, mode, damage=lambda operations: operations):
    """The plain gap at each first difference, and all plain gaps."""
    dice, partings, seen = random.Random(0), [], []
    for directory in directories:
        target = load(directory, mode=mode)
        ids, gaps = plain_with_gaps(target)
        seen += gaps
        for _ in range(2):
            drafted = replace(target, operations=damage(target.operations))
            place = parting(drafted, ids, dice)
            if place is not None:
                partings.append(gaps[place - 1])
    return partings, seen


def test_exact_mode_writes_the_same_where_every_token_nearly_ties(twins):
    partings, gaps = gaps_where_texts_part(twins, "exact")
    assert partings == []
    assert sum(gap < 1e-5 for gap in gaps) > 0.9 * len(gaps)


def test_fast_mode_parts_at_near_ties_alone(twins):
    partings, gaps = gaps_where_texts_part(twins, "fast")
    assert sum(gap < 1e-5 for gap in gaps) > 0.9 * len(gaps)
    assert len(partings) >= len(twins) // 2, "too few near ties were met to say anything"
    assert max(partings) < NEAR_TIE, sorted(partings)


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """Random checkpoints as they come."""
    return [
        write_target(tmp_path_factory.mktemp("ordinary") / "target", seed=seed) for seed in SEEDS
    ]


def test_fast_mode_parts_nowhere_else_on_ordinary_models(ordinary):
    partings, gaps = gaps_where_texts_part(ordinary, "fast")
    assert max(gaps) > 0.1
    assert all(gap < NEAR_TIE for gap in partings)


def test_a_fault_of_one_per_cent_is_no_near_tie(ordinary):
    def damaged(operations):
        def verify(*arguments):
            y = operations.gdn_verify(*arguments)
            arguments[-2].updates.mul_(1.01)  # records: what a commit will write
            return y

        return replace(operations, gdn_verify=verify)

    partings, _ = gaps_where_texts_part(ordinary, "fast", damaged)
    assert max(partings, default=0) >= NEAR_TIE
