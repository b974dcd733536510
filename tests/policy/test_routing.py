# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What rows and experts cost, from blocks that were read in every length."""

import pytest
import torch

from hybridspec.policy.routing import RoutingCosts, correlation

BLOCKS, BLOCK, ROUTERS = 12, 16, 5


def blocks(share=0.5, seed=0):
    """Distinct experts by rows: what is new to a layer goes with the first, `share` of it."""
    draw = torch.Generator().manual_seed(seed)
    first = torch.randint(0, 9, (BLOCKS, BLOCK, 1), generator=draw).double()
    own = torch.randint(0, 9, (BLOCKS, BLOCK, ROUTERS - 1), generator=draw).double()
    others = share * first + (1 - share) * own
    return torch.cat((first, others), dim=-1).cumsum(1)


def seconds_of(fetched, per_row, per_expert, noise=0.0):
    rows = torch.arange(1, BLOCK + 1).double()
    draw = torch.Generator().manual_seed(1)
    shaken = noise * torch.randn(BLOCKS, BLOCK, generator=draw)
    return 2e-3 + per_row * rows + per_expert * fetched.sum(-1) + shaken


@pytest.mark.parametrize(("per_row", "per_expert"), [(3e-5, 1.5e-6), (0.0, 2e-6), (4e-5, 0.0)])
def test_known_prices_are_found(per_row, per_expert):
    fetched = blocks()
    found = RoutingCosts.fitted(seconds_of(fetched, per_row, per_expert), fetched)
    assert found.seconds_per_row == pytest.approx(per_row, rel=1e-6, abs=1e-9)
    assert found.seconds_per_expert == pytest.approx(per_expert, rel=1e-6, abs=1e-11)
    assert found.layers == ROUTERS
    elsewhere = (ROUTERS - 1) * found.correlation
    assert found.per_first_expert == pytest.approx(found.seconds_per_expert * (1 + elsewhere))


@pytest.mark.parametrize("seed", range(5))
def test_noise_leaves_the_price_of_an_expert(seed):
    fetched = blocks(seed=seed)
    found = RoutingCosts.fitted(seconds_of(fetched, 3e-5, 1.5e-6, noise=2e-5), fetched)
    assert found.seconds_per_expert == pytest.approx(1.5e-6, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_that_meet_few_experts_tell_rows_from_experts(seed):
    """Noise of a tenth of a round; the correlation is that of the text alone."""
    text = blocks(seed=seed)
    alike = text.clone()
    alike[:, 1:] = text[:, :1]
    fetched = torch.cat((text, alike))
    draw = torch.Generator().manual_seed(seed)
    seconds = 2e-3 + 3e-5 * torch.arange(1, BLOCK + 1) + 1.5e-6 * fetched.sum(-1)
    seconds += 2e-4 * torch.randn(seconds.shape, generator=draw)
    found = RoutingCosts.fitted(seconds, fetched, of_text=BLOCKS)
    assert found.seconds_per_expert == pytest.approx(1.5e-6, rel=0.2)
    assert found.seconds_per_row == pytest.approx(3e-5, rel=0.5)
    assert found.correlation == RoutingCosts.fitted(seconds[:BLOCKS], text).correlation


@pytest.mark.parametrize(
    ("per_row", "per_expert"), [(-1e-5, 1.5e-6), (3e-5, -1e-6), (-1e-5, -1e-6)]
)
def test_no_price_is_negative(per_row, per_expert):
    """A table would refuse it."""
    fetched = blocks()
    found = RoutingCosts.fitted(seconds_of(fetched, per_row, per_expert), fetched)
    assert min(found.seconds_per_row, found.seconds_per_expert) >= 0


@pytest.mark.parametrize("seed", range(10))
def test_where_nothing_costs_anything_the_prices_are_none(seed):
    """The same seconds throughout, or fewer for more rows and experts: some fit is at hand."""
    fetched = blocks(seed=seed)
    for seconds in (torch.full((BLOCKS, BLOCK), 2e-3), -seconds_of(fetched, 3e-5, 1e-6)):
        found = RoutingCosts.fitted(seconds, fetched)
        assert found.seconds_per_row == pytest.approx(0, abs=1e-12)
        assert found.seconds_per_expert == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_correlation_is_the_slope_within_each_number_of_rows(share):
    """Rows differ in their means besides, which says nothing of one block against another."""
    new = blocks(share).diff(dim=1) + torch.arange(BLOCK - 1)[:, None]
    found = correlation(new[..., 0], new[..., 1:])
    assert found == pytest.approx(share, abs=0.06)
    assert found <= 1


def test_one_router_or_rows_that_are_all_alike_say_nothing():
    assert correlation(torch.ones(3, 4), torch.ones(3, 4, 0)) == 0
    assert correlation(torch.ones(3, 4), torch.rand(3, 4, 2)) == 0
