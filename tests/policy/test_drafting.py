# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import random
from itertools import pairwise

import pytest

from hybridspec.policy.drafting import (
    EARNED_SHARE,
    MEMORY,
    MOST_EARNED,
    PAUSE,
    PROBE_SHARE,
    TRIAL,
    Drafting,
)

PLAIN, DRAFTED = 1.0, 1.7
"""seconds of a plain step and of a drafted round: a draft pays from 1.7 tokens a round"""


def run(drafting, tokens_of, rounds):
    """Rounds as a request has them; returns what happened and the seconds against plain steps."""
    kinds, tokens, seconds = [], 0, 0.0
    for number in range(rounds):
        kinds.append(drafting.wants_drafts())
        if kinds[-1]:
            emitted = tokens_of(number)
            drafting.see_drafted(tokens=emitted, seconds=DRAFTED, plain_seconds=PLAIN)
        else:
            emitted = 1
            drafting.see_plain(PLAIN)
        tokens += emitted
        seconds += DRAFTED if kinds[-1] else PLAIN
    return kinds, seconds / (tokens * PLAIN)


def test_drafting_rests_once_a_memory_of_rounds_has_lost_time():
    kinds, _ = run(Drafting(), lambda _: 1, MEMORY + 20)
    assert kinds == [True] * MEMORY + [False] * 20


@pytest.mark.parametrize("tokens", [(2,), (1, 1, 1, 5), (1,) * 15 + (30,)])
def test_drafting_goes_on_while_the_rounds_together_save_time(tokens):
    kinds, _ = run(Drafting(), lambda i: tokens[i % len(tokens)], 600)
    assert all(kinds)


def test_tokens_are_weighed_against_the_time_of_their_own_round():
    drafting = Drafting()
    for number in range(MEMORY):  # 1.5 tokens a round, as cheap as 1.4 plain steps
        drafting.see_drafted(tokens=1 + number % 2, seconds=1.4, plain_seconds=1.0)
    assert drafting.wants_drafts()
    drafting.see_drafted(tokens=1, seconds=9.0, plain_seconds=1.0)
    assert not drafting.wants_drafts()


@pytest.mark.parametrize("luck", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_after_warm_up_a_bad_drafter_costs_little_more_than_the_probes(luck, seed):
    dice, drafting = random.Random(seed), Drafting()
    guess = lambda _: 2 if dice.random() < luck else 1  # noqa: E731
    run(drafting, guess, MEMORY)
    assert not drafting.wants_drafts()
    kinds, slower = run(drafting, guess, 20_000)
    assert any(kinds), "no probe"
    assert slower <= 1 + 2 * PROBE_SHARE


def test_a_pause_ends_soon_after_the_text_has_changed():
    drafting = Drafting()
    run(drafting, lambda _: 1, 2000)
    kinds, slower = run(drafting, lambda _: 4, 600)
    resumed = kinds.index(True)
    assert resumed <= (DRAFTED - PLAIN) / PROBE_SHARE + 1
    assert all(kinds[resumed:])
    assert slower < 1


def test_a_trial_that_was_luck_is_short_and_paid_off_before_the_next_probe():
    drafting = Drafting()
    run(drafting, lambda _: 1, MEMORY + 1000)
    while not drafting.wants_drafts():
        drafting.see_plain(PLAIN)
    drafting.see_drafted(tokens=2, seconds=DRAFTED, plain_seconds=PLAIN)
    kinds, _ = run(drafting, lambda _: 1, 2000)
    assert kinds[: TRIAL - 1] == [True] * (TRIAL - 1)
    saved = 2 * PLAIN - DRAFTED
    lost = (TRIAL - 1) * (DRAFTED - PLAIN) - saved - EARNED_SHARE * saved
    assert kinds.index(True, TRIAL - 1) >= TRIAL - 1 + int(lost / PROBE_SHARE)


def test_a_probe_is_no_trial():
    drafting = Drafting()
    run(drafting, lambda _: 1, MEMORY)
    kinds, _ = run(drafting, lambda _: 1, 1000)
    places = [i for i, is_probe in enumerate(kinds) if is_probe]
    assert len(places) >= 3
    assert all(b - a > (DRAFTED - PLAIN) / PROBE_SHARE for a, b in pairwise(places))


def test_a_drafter_that_was_good_is_soon_asked_again():
    """A hard stretch of a text rests drafting for little longer than it lasts."""
    drafting = Drafting()
    run(drafting, lambda _: 4, 2000)
    kinds, _ = run(drafting, lambda _: 1, MEMORY * 2)
    assert not all(kinds)
    kinds, slower = run(drafting, lambda _: 4, 200)
    assert kinds.index(True) <= PAUSE
    assert sum(kinds) >= 200 - PAUSE
    assert slower < 0.5


@pytest.mark.parametrize("good", [100, 3000, 30_000])
def test_a_drafter_that_turned_bad_is_followed(good):
    """What it may risk of its savings is soon spent, and then it is as before."""
    drafting = Drafting()
    run(drafting, lambda _: 4, good)
    kinds, _ = run(drafting, lambda _: 1, 1000)
    probes = MOST_EARNED * PLAIN / (DRAFTED - PLAIN)
    assert sum(kinds) <= 2 * MEMORY + probes + 4
    assert sum(kinds[:200]) < 100
    _, slower = run(drafting, lambda _: 1, 20_000)
    assert slower <= 1 + 2 * PROBE_SHARE


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_ever_lost_beyond_the_purses(seed):
    """On texts that turn good and bad at random, by no more than a memory and the probes' share."""
    dice, drafting = random.Random(seed), Drafting()
    tokens = spent = 0.0
    for _ in range(60):
        chance, length = dice.choice((0.0, 0.1, 0.3, 0.6, 0.9)), dice.randrange(10, 400)
        guess = lambda _, chance=chance: 1 + sum(dice.random() < chance for _ in range(3))  # noqa: E731
        kinds, slower = run(drafting, guess, length)
        seconds = sum(DRAFTED if kind else PLAIN for kind in kinds)
        spent, tokens = spent + seconds, tokens + seconds / slower
    assert spent <= tokens * (1 + 2 * PROBE_SHARE) + MEMORY * (DRAFTED - PLAIN)
