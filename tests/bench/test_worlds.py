# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from typing import get_args

import pytest
import torch

from hybridspec.bench.options import World
from hybridspec.bench.worlds import WORLDS, AcceptanceWorld, draw_acceptances

DRAFTS, MANY = 15, 20_000


def profile(world, positions, drafts):
    return AcceptanceWorld.of(world).profile(positions, drafts)


def test_every_world_is_a_file_that_says_where_it_is_from():
    assert {path.stem for path in WORLDS.iterdir()} == set(get_args(World))
    for world in get_args(World):
        own = AcceptanceWorld.of(world)
        assert own.source
        assert own.derivation


def auc(log_odds, accepted):
    """Chance that a right draft's log-odds are above a wrong one's, by ranks."""
    ranks = log_odds.double().argsort().argsort()[accepted].double() + 1
    right, wrong = int(accepted.sum()), int((~accepted).sum())
    return float(ranks.sum() - right * (right + 1) / 2) / (right * wrong)


@pytest.mark.parametrize(
    ("world", "survival"),
    [("chat", [0.71, 0.48, 0.34, 0.25, 0.20]), ("agentic", [0.85, 0.77, 0.71, 0.67, 0.64])],
)
def test_survival_is_as_published(world, survival):
    found = profile(world, 1, DRAFTS)[0].cumprod(0)[:5]
    assert torch.allclose(found, torch.tensor(survival).double(), atol=0.0051)


def test_maths_gives_the_published_tokens_a_round():
    assert 1 + float(profile("maths", 1, DRAFTS)[0].cumprod(0).sum()) == pytest.approx(
        7.63, abs=5e-3
    )


def test_mixed_is_seven_stretches_of_chat_and_three_of_agentic():
    stretch = AcceptanceWorld.of("mixed").stretch
    found = profile("mixed", 20 * stretch, DRAFTS).unflatten(0, (20, stretch))
    chat, agentic = (profile(world, 1, DRAFTS) for world in ("chat", "agentic"))
    assert torch.equal(found[:10], found[10:])
    is_chat = (found == chat).all((1, 2))
    assert torch.equal(~is_chat, (found == agentic).all((1, 2)))
    assert int(is_chat[:10].sum()) == 7


@pytest.mark.parametrize("tokens", [512, 2048])
def test_sixteen_rows_gain_in_mixed_what_the_paper_reports(tokens):
    """By the milliseconds that its file names, of a plain step and of a round of sixteen rows."""
    drawn = draw_acceptances("mixed", positions=4096, drafts=DRAFTS)
    gain = drawn.tokens_a_round(16, begin=1024, tokens=tokens) * 2.348 / 7.810
    assert gain == pytest.approx(1.34, abs=0.02)


def test_rounds_of_a_world_emit_what_is_right_and_one_more():
    drawn = draw_acceptances("chat", positions=400, drafts=DRAFTS)
    assert drawn.tokens_a_round(1, begin=0, tokens=100) == 1
    place, rounds = 7, 0
    while place < 107:
        right = 0
        while right < 3 and drawn.accepted[place, right]:
            right += 1
        place, rounds = place + right + 1, rounds + 1
    assert drawn.tokens_a_round(4, begin=7, tokens=100) == (place - 7) / rounds


@pytest.mark.parametrize("world", ["chat", "agentic", "maths", "mixed"])
def test_drafts_are_right_as_often_as_the_world_says(world):
    found = draw_acceptances(world, positions=MANY, drafts=DRAFTS).accepted.double().mean(0)
    assert torch.allclose(found, profile(world, MANY, DRAFTS).mean(0), atol=4 * 0.5 / MANY**0.5)


@pytest.mark.parametrize("world", ["chat", "agentic"])
def test_log_odds_tell_right_from_wrong_as_well_as_stated(world):
    drawn = draw_acceptances(world, positions=MANY, drafts=DRAFTS)
    for place in range(DRAFTS):
        found = auc(drawn.log_odds[:, place], drawn.accepted[:, place])
        assert found == pytest.approx(AcceptanceWorld.of(world).auc, abs=0.02)


def test_log_odds_are_chances():
    """So a table of slope 1 and intercepts 0 fits them."""
    drawn = draw_acceptances("chat", positions=MANY, drafts=DRAFTS)
    chances, accepted = drawn.log_odds.sigmoid().flatten(), drawn.accepted.flatten()
    for low in torch.arange(0.1, 0.9, 0.1):
        inside = (chances >= low) & (chances < low + 0.1)
        assert float(accepted[inside].double().mean()) == pytest.approx(
            float(chances[inside].mean()), abs=0.02
        )


def test_a_seed_repeats_itself():
    one, again, other = (
        draw_acceptances("chat", positions=50, drafts=DRAFTS, seed=seed) for seed in (5, 5, 6)
    )
    assert torch.equal(one.accepted, again.accepted)
    assert torch.equal(one.log_odds, again.log_odds)
    assert not torch.equal(one.accepted, other.accepted)
    assert not torch.equal(one.log_odds, other.log_odds)
