# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The launches of a pass at the sizes of Qwen3.6-35B-A3B, in bf16 on a GPU, against float32."""

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.kernels import experts, gdn, product, router, stream
from hybridspec.kernels.reference import experts as reference_experts
from hybridspec.kernels.reference import gdn as reference_gdn
from hybridspec.kernels.reference import product as reference_product
from hybridspec.kernels.reference import router as reference_router
from hybridspec.kernels.reference.norm import HeadGate, Heads, gated_rms_norm
from hybridspec.kernels.reference.router import Routing
from hybridspec.kernels.reference.stream import Stream
from tests.kernels.gdn_cases import Sizes, case
from tests.kernels.stream_cases import doubled
from tests.tolerances import distance

pytestmark = pytest.mark.gpu
D, E, TOP, WIDTH, EPS = 2048, 256, 8, 512, 1e-6
ROWS = [1, 2, 9, 16]
SIZES = Sizes(H=16, HV=32, K=128, V=128)
BF16 = 4e-3


@pytest.fixture
def draw():
    gen = torch.Generator("cuda").manual_seed(0)

    def normal(*size, spread=1.0):
        x = torch.empty(size, dtype=torch.bfloat16, device="cuda")
        return x.normal_(0, spread, generator=gen)

    return normal


@pytest.fixture
def entered(draw):
    """A stream of 16 rows that stand behind an embedding, and the norm that reads them."""
    held, norm = Stream.empty(D, dtype=torch.bfloat16, device="cuda"), 1 + draw(D, spread=0.1)
    embedding, tokens = draw(50_000, D), torch.randint(50_000, (16,), device="cuda")
    stream.enter(tokens, count(16), embedding, norm, held)
    assert torch.equal(held.residual, embedding[tokens].float())
    return held, norm


def count(rows):
    return torch.tensor(rows, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("M", [12352, 9216, 8192, 5120])
def test_every_tile_of_a_projection(draw, entered, rows, M):
    weight, (held, _) = draw(M, D, spread=0.02), entered
    found = product.project(held, weight, count(rows), EPS)[:rows]
    wanted = reference_product.project(doubled(held), weight.double(), count(rows), EPS)[:rows]
    assert distance(found, wanted) < BF16
    tiles = found.double() - wanted
    assert tiles.view(rows, -1, 16).norm(dim=(0, 2)).max() < 0.1


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("K", [4096, 6144, 10240])
def test_what_is_added_to_the_stream(draw, entered, rows, K):
    x, weight, (held, norm) = draw(16, K), draw(D, K, spread=0.02), entered
    exact = doubled(held)
    product.project_onto(x, weight, count(rows), held, norm)
    reference_product.project_onto(x.double(), weight.double(), count(rows), exact, norm.double())
    assert distance(held.residual[:rows], exact.residual[:rows]) < 1e-5
    assert distance(held.squares[:rows], exact.squares[:rows]) < 1e-5


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("verify", [gdn.verify_exact, gdn.verify_block], ids=["exact", "block"])
def test_what_a_layer_of_gdn_adds_to_the_stream(draw, entered, rows, verify):
    """From the convolution's input on; z lies beside it."""
    given, (held, norm) = case(SIZES, "cuda", torch.bfloat16, rows=rows), entered
    HV, K, V, C = SIZES.HV, SIZES.K, SIZES.V, SIZES.C
    wide, weight = draw(16, C + HV * V), draw(D, HV * V, spread=0.02)
    gate = HeadGate(
        z=wide[:, C:].view(16, HV, V),
        weight=1 + draw(V, spread=0.1),
        squares=torch.empty(16, HV, gdn.head_groups(K, V), device="cuda"),
    )
    exact, wanted = given.in_float64(), doubled(held)
    heads = Heads(rows=verify(*given.arguments(), gate), squares=gate.squares)
    product.project_heads_onto(heads, weight, given.rows, EPS, held, norm)
    y = reference_gdn.verify_exact(*exact.arguments())
    x = gated_rms_norm(y, gate.z.double(), gate.weight.double(), EPS).flatten(1)
    before = wanted.residual[:rows].clone()
    reference_product.project_onto(x, weight.double(), given.rows, wanted, norm.double())
    added = held.residual[:rows].double() - before
    assert distance(added, wanted.residual[:rows] - before) < BF16


@pytest.mark.parametrize("rows", ROWS)
def test_a_layer_of_experts(draw, entered, rows):
    """As a pass calls it: one row in launches for one."""
    (held, norm), most_rows = entered, 1 if rows == 1 else 16
    weight = draw(E + 1, D, spread=0.02)
    routing = Routing.empty(E, TOP, "cuda", parts=router.splits(D))
    router.route_stream(held, weight, count(rows), EPS, routing, most_rows=most_rows)
    exact, wanted = doubled(held), Routing.empty(E, TOP, "cuda")
    reference_router.route_stream(exact, weight.double(), count(rows), EPS, wanted)
    gate_up, down = draw(E + 1, 2 * WIDTH, D, spread=0.02), draw(E + 1, D, WIDTH, spread=0.02)
    args = held, routing, gate_up, down, count(rows), norm
    experts.experts_onto(*args, most_rows=most_rows)
    assert (routing.ids[:rows] == wanted.ids[:rows]).double().mean() > 0.98  # near-ties may flip
    distinct = routing.ids[:rows].unique()
    assert int(routing.count) == len(distinct) + 1
    assert torch.equal(routing.chosen[1 : len(distinct) + 1], distinct)
    reference_experts.experts_onto(exact, routing, gate_up, down, count(rows), norm.double())
    added = held.residual[:rows] - exact.residual[:rows]
    assert float(added.norm() / exact.residual[:rows].norm()) < 2e-3
