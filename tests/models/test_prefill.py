# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The chunked prompt pass against the reference, with products and delta rule that run on a CPU."""

import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.core.errors import OptionError
from hybridspec.kernels.reference import attention
from hybridspec.kernels.reference import experts as reference_experts
from hybridspec.kernels.reference.router import route
from hybridspec.models import prefill, prefill_library
from hybridspec.models.target import PREFILL_ROWS
from tests.models.fused_cases import (
    LAYERS,
    few_programs,  # noqa: F401
    twins,
)
from tests.models.prefill_cases import PLAIN
from tests.tolerances import FUSED, distance

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("few_programs"),
]


def compare(pair, length, chunk, before=0, dtype=torch.float32):
    plain, fused = pair.states(256)
    tokens = torch.randint(256, (before + length,), generator=torch.Generator().manual_seed(length))
    for piece in (tokens[:before], tokens[before:]):
        if len(piece):
            parts = piece.split(PREFILL_ROWS)
            readings = [pair.reference.read_prompt(part, plain) for part in parts]
            found = prefill.read_prompt(pair.fused, piece, fused, chunk=chunk, library=PLAIN)
            taps = torch.cat([one.taps for one in readings])
            assert distance(found.taps, taps) < FUSED[dtype]
            assert torch.equal(found.tokens, readings[-1].tokens)
            assert distance(found.gaps, readings[-1].gaps) < 1e-2
    ours, theirs = fused.committed(), plain.committed()
    assert int(ours.pop("length")) == int(theirs.pop("length")) == before + length
    for name, tensor in theirs.items():
        assert ours[name].shape == tensor.shape
        assert distance(ours[name], tensor) < FUSED[dtype], name


@pytest.mark.parametrize("layers", LAYERS)
@torch.inference_mode()
def test_a_prompt_in_chunks_leaves_what_the_reference_does(layers, tmp_path):
    pair = twins(tmp_path, "cpu", torch.float32, "exact", layers)
    for length in (*range(1, 21), 63, 64, 65, 129, 200):
        for chunk in (1, 2, 3, 16, 64, 4096):
            if length < 21 or chunk > 3:
                compare(pair, length, chunk)


@torch.inference_mode()
def test_a_prompt_goes_on_from_any_committed_length(tmp_path):
    pair = twins(tmp_path, "cpu", torch.float32, "exact", "experts everywhere")
    for before, length in ((1, 1), (2, 5), (3, 3), (127, 1), (127, 2), (128, 4), (130, 20)):
        compare(pair, length, 7, before)


@torch.inference_mode()
def test_prescribed_experts_are_taken_by_absolute_position(tmp_path):
    pair = twins(tmp_path, "cpu", torch.float32, "exact", "experts everywhere")
    table = torch.stack([torch.randperm(6)[:3] for _ in range(3 * 40)]).view(3, 40, 3).int()
    steered = replace(pair.fused, steered=table)
    tokens, states = torch.randint(256, (20,)), [pair.states(64)[1] for _ in range(2)]
    taps = [
        prefill.read_prompt(steered, tokens, state, chunk=chunk, library=PLAIN).taps
        for state, chunk in zip(states, (20, 6), strict=True)
    ]
    assert distance(*taps) < FUSED[torch.float32]
    free = prefill.read_prompt(pair.fused, tokens, pair.states(64)[1], chunk=20, library=PLAIN)
    assert distance(free.taps, taps[0]) > 10 * FUSED[torch.float32]


@pytest.mark.parametrize("start", [0, 1, 100, 128])
def test_attention_equals_the_reference(start):
    draw = torch.Generator().manual_seed(start)
    keys, values = torch.randn(2, 3, 2, 128, 16, generator=draw)
    q = torch.randn(130, 8, 16, generator=draw)
    want = attention.attend(q, keys, values, torch.tensor(start, dtype=torch.int32))
    assert distance(prefill.attend(q, keys, values, start), want) < 2e-6


@pytest.mark.parametrize("library", [PLAIN, replace(PLAIN, grouped=prefill_library.grouped)])
def test_sorted_experts_equal_the_reference_though_some_are_chosen_by_none(library):
    draw = torch.Generator().manual_seed(0)
    x, gate_up = torch.randn(9, 16, generator=draw), torch.randn(12, 16, 16, generator=draw)
    down = torch.randn(12, 16, 8, generator=draw)
    ids, weights = route(
        torch.randn(9, 12, generator=draw).index_fill(1, torch.tensor([0, 5, 11]), -9), 2
    )
    found = prefill.experts(x, ids, weights, gate_up, down, library)
    want = reference_experts.experts(x, ids, weights, gate_up, down.transpose(0, 1).contiguous())
    assert distance(found, want) < 2e-6


def test_a_missing_library_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(OptionError, match=r"hybridspec\[cuda\]"):
        prefill_library.require_fla()
