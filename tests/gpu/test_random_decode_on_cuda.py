# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Decoding with random weights as captured graphs: put back, replayed, and taken in pieces."""

import pytest

pytest.importorskip("triton")

from hybridspec.bench.options import DecodeOptions
from hybridspec.bench.phases import PHASES
from hybridspec.bench.random_decode import run_random_decode
from hybridspec.bench.worlds import draw_acceptances
from hybridspec.core.options import MAX_ROWS
from tests.bench.scripts import rounds_by_table
from tests.bench.tiny_shape import TOP, tiny_shape

pytestmark = pytest.mark.gpu
CONTEXT, TOKENS = 100, 200


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("world", ["chat", "mixed"])
def test_every_policy_writes_the_script(mode, world, tmp_path):
    """That the text is the script's is asserted wherever one is decoded."""
    options = DecodeOptions(
        shape="qwen3.6-35b-a3b",
        random_weights=True,
        policies="plain,fixed:1,fixed:4,fixed,hybrid",
        mode=mode,
        device="cuda",
        context=CONTEXT,
        max_new_tokens=TOKENS,
        acceptance_world=world,
    )
    report = run_random_decode(options, shape=tiny_shape(tmp_path, block_size=16))
    table = draw_acceptances(world, positions=CONTEXT + TOKENS + 2 * MAX_ROWS, drafts=15)
    plain, *fixed, hybrid = report.arms
    for arm, rows in zip(fixed, (1, 4, 16), strict=True):
        emitted = rounds_by_table(
            table.accepted.tolist(), context=CONTEXT, tokens=TOKENS, rows=rows
        )
        assert arm.lengths == {rows: len(emitted)}
    assert plain.lengths == {1: TOKENS - 1}
    assert plain.experts_a_layer == TOP
    assert sum(hybrid.lengths.values()) == hybrid.rounds
    for arm in report.arms:
        drafts = arm.rounds_drafted > 0
        assert set(arm.phases_ms) == set(PHASES)
        assert (arm.phases_ms["draft"] > 0) == drafts
        assert arm.phases_ms["verify"] > 0 < arm.phases_ms["commit"]
        assert arm.phases_ms["rest"] > 0
