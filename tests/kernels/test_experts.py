# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest
import torch

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels.reference.experts import (
    experts,
    experts_of_few_rows,
    experts_of_one_row,
    gated_mlp,
)
from tests.tolerances import OPERATION, distance

D, E, INNER, TOP = 32, 8, 12, 3


def random_layer(seed=0):
    gen = torch.Generator().manual_seed(seed)
    gate_up = torch.randn(E, 2 * INNER, D, generator=gen) * D**-0.5
    down = torch.randn(E, D, INNER, generator=gen) * INNER**-0.5
    x = torch.randn(MAX_ROWS, D, generator=gen)
    ids = torch.stack([torch.randperm(E, generator=gen)[:TOP] for _ in range(MAX_ROWS)])
    weights = torch.rand(MAX_ROWS, TOP, generator=gen)
    return x, ids, weights, gate_up, down


def chosen_of(distinct):
    """Experts of MAX_ROWS rows, among the first `distinct`."""
    gen = torch.Generator().manual_seed(distinct)
    return torch.stack([torch.randperm(distinct, generator=gen)[:TOP] for _ in range(MAX_ROWS)])


def packed(down):
    return down.transpose(0, 1).contiguous()


def judge(x, ids, weights, gate_up, down):
    """A loop over rows and their experts, in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(len(x)):
        for expert, weight in zip(ids[row].tolist(), weights[row].double(), strict=True):
            if expert < 0:
                continue
            gate, up = (gate_up[expert].double() @ x[row].double()).chunk(2)
            out[row] += weight * (down[expert].double() @ (gate / (1 + torch.exp(-gate)) * up))
    return out


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_packed_experts_equal_a_loop(rows):
    x, ids, weights, gate_up, down = random_layer()
    x, ids, weights = x[:rows], ids[:rows], weights[:rows]
    found = experts(x, ids, weights, gate_up, packed(down))
    assert distance(found, judge(x, ids, weights, gate_up, down)) < OPERATION


def test_minus_one_chooses_nothing():
    x, ids, weights, gate_up, down = random_layer()
    ids[5:] = -1
    ids[2, 1] = -1
    found = experts(x, ids, weights, gate_up, packed(down))
    assert distance(found, judge(x, ids, weights, gate_up, down)) < OPERATION
    assert torch.equal(found[5:], torch.zeros_like(found[5:]))


@pytest.mark.parametrize("row", range(0, MAX_ROWS, 3))
def test_the_path_for_one_row_equals_the_others(row):
    x, ids, weights, gate_up, down = random_layer()
    one = (x[row : row + 1], ids[row : row + 1], weights[row : row + 1])
    found = experts_of_one_row(*one, gate_up, packed(down))
    assert distance(found, judge(*one, gate_up, down)) < OPERATION


@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
@pytest.mark.parametrize("distinct", [3, 5, 6, 7, 8])
def test_the_path_for_few_rows_equals_the_others(rows, distinct):
    x, _, weights, gate_up, down = random_layer(rows)
    few = (x[:rows], chosen_of(distinct)[:rows], weights[:rows])
    found = experts_of_few_rows(*few, gate_up, packed(down))
    assert distance(found, judge(*few, gate_up, down)) < OPERATION


def test_the_path_for_few_rows_fetches_the_chosen_experts_alone():
    x, _, weights, gate_up, down = random_layer()
    ids = chosen_of(4) + 1
    want = experts_of_few_rows(x, ids, weights, gate_up, packed(down))
    for unchosen in (0, *range(5, E)):
        gate_up[unchosen] = down[unchosen] = torch.nan
    assert torch.equal(experts_of_few_rows(x, ids, weights, gate_up, packed(down)), want)


def test_no_rows_give_no_rows():
    x, ids, weights, gate_up, down = random_layer()
    none = (x[:0], ids[:0], weights[:0], gate_up, packed(down))
    assert experts(*none).shape == experts_of_few_rows(*none).shape == (0, D)


@pytest.mark.parametrize("place", range(MAX_ROWS))
def test_a_row_does_not_depend_on_its_place_or_the_others(place):
    x, ids, weights, gate_up, down = random_layer()
    want = experts(x, ids, weights, gate_up, packed(down))
    moved = [torch.zeros_like(x), torch.full_like(ids, -1), torch.zeros_like(weights)]
    for to, of in zip(moved, (x, ids, weights), strict=True):
        to[place] = of[3]
    assert torch.equal(experts(*moved, gate_up, packed(down))[place], want[3])


def test_a_gated_mlp_is_an_expert_of_weight_one():
    x, _, _, gate_up, down = random_layer()
    ids = torch.full((MAX_ROWS, 1), 4)
    gate, up = gate_up[4].chunk(2)
    want = judge(x, ids, torch.ones(MAX_ROWS, 1), gate_up, down)
    assert distance(gated_mlp(x, gate, up, down[4]), want) < OPERATION
