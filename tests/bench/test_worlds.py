# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.bench.worlds import AUC, STRETCH, draw_acceptances, profile

DRAFTS, MANY = 15, 20_000


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
        6.95, abs=5e-3
    )


def test_mixed_is_chat_and_agentic_by_turns():
    mixed = profile("mixed", 3 * STRETCH, DRAFTS)
    chat, agentic = (profile(world, STRETCH, DRAFTS) for world in ("chat", "agentic"))
    assert torch.equal(mixed, torch.cat((chat, agentic, chat)))


@pytest.mark.parametrize("world", ["chat", "agentic", "maths", "mixed"])
def test_drafts_are_right_as_often_as_the_world_says(world):
    found = draw_acceptances(world, positions=MANY, drafts=DRAFTS).accepted.double().mean(0)
    assert torch.allclose(found, profile(world, MANY, DRAFTS).mean(0), atol=4 * 0.5 / MANY**0.5)


@pytest.mark.parametrize("world", ["chat", "agentic"])
def test_log_odds_tell_right_from_wrong_as_well_as_stated(world):
    drawn = draw_acceptances(world, positions=MANY, drafts=DRAFTS)
    for place in range(DRAFTS):
        found = auc(drawn.log_odds[:, place], drawn.accepted[:, place])
        assert found == pytest.approx(AUC, abs=0.02)


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
