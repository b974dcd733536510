# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import stream
from hybridspec.kernels.launch import ShapeError
from hybridspec.kernels.reference import stream as reference
from tests.kernels.gdn_cases import EVERY_DTYPE, EVERYWHERE, counts
from tests.kernels.stream_cases import (
    by_row,
    check_that_rows_stand_alone,
    doubled,
    few_counts,
    numbers,
    stream_of,
)
from tests.tolerances import GDN_OUTPUTS, OPERATION, distance

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

V = 50


def begun(tokens, embedding, norm, start=stream.enter):
    """The stream of a pass of these tokens, [n]; all that is stale is no token or NaN."""
    device, D = embedding.device, embedding.shape[1]
    held = stream_of(torch.empty(0, D, device=device), norm)
    stale = torch.full((MAX_ROWS,), 2**40, device=device)
    stale[: len(tokens)] = tokens
    held = held if start is stream.enter else doubled(held)
    start(stale, counts(len(tokens), device), embedding, norm, held)
    return held


def problem(device, dtype, D=128):
    tokens = torch.randint(V, (MAX_ROWS,), generator=torch.Generator().manual_seed(1)).to(device)
    tokens[1] = V - 1
    norm = numbers(device, dtype, D, seed=2) + 1
    return tokens, numbers(device, dtype, V, D), norm


@pytest.mark.parametrize(("device", "dtype"), EVERY_DTYPE)
@pytest.mark.parametrize("D", [16, 64, 96, 128, 256])
def test_a_pass_begins_with_its_tokens_and_writes_no_other_row(device, dtype, D):
    tokens, embedding, norm = problem(device, dtype, D)
    for n in few_counts(device):
        found = begun(tokens[:n], embedding, norm)
        wanted = begun(tokens[:n], embedding.double(), norm.double(), reference.enter)
        assert torch.equal(found.residual[:n], embedding[tokens[:n]].float())
        assert distance(found.scaled[:n], wanted.scaled[:n]) < GDN_OUTPUTS[dtype]
        assert distance(found.squares[:n], wanted.squares[:n]) < OPERATION
        assert all(x[n:].isnan().all() for x in by_row(found))


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_a_row_is_the_same_bits_alone_and_anywhere_in_a_pass(device, dtype):
    tokens, embedding, norm = problem(device, dtype)
    check_that_rows_stand_alone(lambda order: by_row(begun(tokens[order], embedding, norm)), device)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_what_does_not_fit_is_refused_by_name(device, dtype):
    tokens, embedding, norm = problem(device, dtype)
    rows, held = counts(1, device), stream_of(embedding[:1].float(), norm)
    narrow = embedding[:, :40].contiguous()
    wrong = {
        "tokens": (tokens[:8], rows, embedding, norm, held),
        "rows": (tokens, rows.long(), embedding, norm, held),
        "embedding": (tokens, rows, narrow, norm, held),
        "norm": (tokens, rows, embedding, norm[:64], held),
        "residual": (
            tokens,
            rows,
            narrow,
            norm[:40],
            replace(held, residual=held.residual[:, :40]),
        ),
        "scaled": (tokens, rows, embedding, norm, replace(held, scaled=held.scaled[:8])),
        "squares": (tokens, rows, embedding, norm, replace(held, squares=held.squares.mT)),
    }
    for name, arguments in wrong.items():
        with pytest.raises(ShapeError, match=name):
            stream.enter(*arguments)
