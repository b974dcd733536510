# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.bench.overlap import novelty_correlation, steered_experts

LAYERS, POSITIONS, E, TOP = 6, 800, 64, 8


def drawn(persistence, **changes):
    sizes = {"experts": E, "top": TOP} | changes
    return steered_experts(LAYERS, POSITIONS, persistence=persistence, **sizes)


def shared(table):
    """Experts that each position shares with the one before it."""
    now, before = table[:, 1:, :, None], table[:, :-1, None, :]
    return (now == before).any(-1).sum(-1)


@pytest.mark.parametrize("persistence", [0.0, 0.4, 1.0])
def test_experts_of_a_position_are_distinct_and_as_many_are_kept_as_stated(persistence):
    table = drawn(persistence)
    assert table.shape == (LAYERS, POSITIONS, TOP)
    assert table.dtype == torch.int32
    assert table.is_contiguous()
    assert 0 <= int(table.min()) <= int(table.max()) < E
    assert bool((table.sort(-1).values.diff(dim=-1) > 0).all())
    kept = shared(table).double() / TOP
    noise = (persistence * (1 - persistence) / (kept.numel() * TOP)) ** 0.5
    assert abs(float(kept.mean()) - persistence) <= 4 * noise


def test_each_expert_is_kept_by_itself():
    """The number kept is binomial: all or none at a time would have TOP times its variance."""
    variance = float(shared(drawn(0.4)).double().var())
    assert variance == pytest.approx(TOP * 0.4 * 0.6, rel=0.1)


def test_new_experts_are_drawn_from_all():
    counts = drawn(0.0).flatten().bincount(minlength=E).double()
    assert counts.min() > 0.8 * counts.mean()
    assert counts.max() < 1.2 * counts.mean()


def test_layers_differ_and_a_seed_repeats_itself():
    table = drawn(0.4)
    assert torch.equal(table, drawn(0.4))
    assert not torch.equal(table, drawn(0.4, seed=3))
    assert not torch.equal(table[0], table[1])


@pytest.mark.parametrize("correlation", [0.0, 0.4, 0.8, 1.0])
def test_new_experts_at_the_first_router_tell_of_the_others_as_stated(correlation):
    """And each layer keeps as many as ever, in as wide a spread."""
    sizes = {"experts": E, "top": TOP, "persistence": 0.4}
    table = steered_experts(40, 3000, correlation=correlation, **sizes)
    assert novelty_correlation(table) == pytest.approx(correlation, abs=0.06)
    kept = shared(table).double()
    assert float(kept.mean()) == pytest.approx(0.4 * TOP, rel=0.05)
    assert float(kept.var()) == pytest.approx(TOP * 0.4 * 0.6, rel=0.1)


@pytest.mark.parametrize("persistence", [0.0, 1.0])
def test_where_all_or_none_are_kept_no_token_is_unlike_another(persistence):
    table = drawn(persistence, correlation=0.8)
    assert (shared(table) == persistence * TOP).all()
