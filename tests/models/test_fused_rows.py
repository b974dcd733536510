# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Rows that are not read cost nothing: no expert, no write; and memory is the same for any rows."""

from dataclasses import fields

import pytest

pytest.importorskip("triton")

from hybridspec.core.options import MAX_ROWS
from hybridspec.kernels import experts, gdn
from tests.kernels.gdn_cases import EVERYWHERE, ON_CUDA
from tests.models.fused_cases import (
    few_programs,  # noqa: F401
    read,
    twins,
)
from tests.watching import Allocations

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("inference", "few_programs"),
]
BLOCK = list(b"area(r): return ")
MARK = 3.0


@pytest.fixture
def routed(monkeypatch):
    """Of each layer that runs: ids of all rows, and how many experts are fetched for them."""
    run, seen = experts.experts_onto, []

    def spying(stream, routing, *rest, **options):
        run(stream, routing, *rest, **options)  # which lists them
        seen.append((routing.ids.clone(), int(routing.count) - routing.pieces))

    monkeypatch.setattr(experts, "experts_onto", spying)
    return seen


def written(target, state):
    """Whatever a pass writes by row."""
    named = {part.name: getattr(state.records, part.name) for part in fields(state.records)}
    return named | {"taps": target.buffers.taps, "keys": state.keys, "values": state.values}


def by_row(name, tensor):
    """Rows first; of keys and values, positions."""
    if name in ("keys", "values"):
        tensor = tensor.transpose(2, 3).flatten(1, 2)
    return tensor if name == "taps" else tensor.transpose(0, 1)


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
def test_rows_that_are_not_read_fetch_no_expert_and_write_nothing(device, dtype, tmp_path, routed):
    target = twins(tmp_path, device, dtype, "exact", "experts everywhere").fused
    config, fetched = target.config, []
    for rows in range(1, MAX_ROWS + 1) if device == "cuda" else (2,):
        state = target.empty_state(MAX_ROWS)
        for tensor in written(target, state).values():
            tensor.fill_(MARK)
        routed.clear()
        read(target, BLOCK, rows, state)
        for name, tensor in written(target, state).items():
            marked = (by_row(name, tensor) == MARK).flatten(1)
            assert marked[rows:].all(), name
            assert not marked[:rows].all(1).any(), name
        assert len(routed) == len(config.layer_types)
        assert [count for _, count in routed] == [len(ids[:rows].unique()) for ids, _ in routed]
        fetched.append(sum(count for _, count in routed))
    assert fetched == sorted(fetched)
    if device == "cuda":
        assert fetched[0] == len(config.layer_types) * config.num_experts_per_tok < fetched[-1]


@pytest.mark.parametrize(
    ("mode", "device", "dtype"),
    [pytest.param("exact", *case.values, marks=case.marks, id=case.id) for case in EVERYWHERE]
    + [
        pytest.param("fast", *case.values, marks=case.marks, id=f"fast-{case.id}")
        for case in ON_CUDA
    ],
)
def test_memory_of_a_pass_is_the_same_for_any_rows_and_holds_no_state_by_row(
    mode, device, dtype, tmp_path, monkeypatch
):
    """A round that kept the state after each row would take sixteen of them a layer."""
    name = "walk" if mode == "exact" else "verify_block"
    run, of_layers = getattr(gdn, name), []

    def watched(*arguments):
        with Allocations() as allocations:
            found = run(*arguments)
        of_layers.append(sum(allocations.sizes))
        return found

    monkeypatch.setattr(gdn, name, watched)
    target = twins(tmp_path, device, dtype, mode, "experts everywhere").fused
    state, taken = target.empty_state(MAX_ROWS), []
    for rows in (1, 7, MAX_ROWS) if device == "cuda" else (1, 3):
        with Allocations() as allocations:
            read(target, BLOCK, rows, state)
        taken.append(allocations.sizes)
    assert all(sizes == taken[0] for sizes in taken)
    assert len(of_layers) == 2 * len(taken)
    assert 0 < max(of_layers) < MAX_ROWS * state.recurrent[0].nbytes // 2
