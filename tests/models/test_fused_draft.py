# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The drafter in launches against its reference."""

import pytest
import torch

pytest.importorskip("triton")

from tests.kernels.gdn_cases import EVERYWHERE
from tests.models.fused_cases import (
    drafters,
    few_programs,  # noqa: F401
)
from tests.tolerances import FUSED

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("few_programs"),
]
KINDS = {
    "full": {},
    "sliding": {
        "layer_types": ["sliding_attention", "full_attention"],
        "use_sliding_window": True,
        "sliding_window": 6,
    },
}


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_launches_draft_what_the_reference_does(device, dtype, kind, tmp_path):
    reference, fused = drafters(tmp_path, device, dtype, **KINDS[kind])
    plain, state = reference.empty_state(100), fused.empty_state(100)
    gen = torch.Generator().manual_seed(0)
    for number, count in enumerate((5, 12, 4)):  # the last two wait together
        taps = torch.randn(16, fused.fc.shape[1], generator=gen).to(dtype)
        taps[count:] = float("nan")
        reference.take(taps[:count].float(), plain)
        fused.take(taps.to(device), state, torch.tensor(count, dtype=torch.int32, device=device))
        if number == 1:
            continue
        want = reference.propose(torch.tensor(65), plain)
        found = fused.propose(torch.tensor(65, device=device), state)
        assert int(found.tokens[0]) == 65
        assert int(state.waiting) == 0
        assert int(state.injected) == plain.injected
        if dtype == torch.float32:
            assert torch.equal(found.tokens, want.tokens)
        off = (found.log_odds.cpu() - want.log_odds).abs().max()
        assert off < 40 * FUSED[dtype]


@pytest.mark.parametrize(("device", "dtype"), EVERYWHERE)
@torch.inference_mode()
def test_of_a_prompt_a_drafter_that_slides_injects_what_a_block_can_see(device, dtype, tmp_path):
    changes = KINDS["sliding"] | {"layer_types": ["sliding_attention"] * 2}
    reference, fused = drafters(tmp_path, device, dtype, **changes)
    plain, state = reference.empty_state(100), fused.empty_state(100)
    taps = torch.randn(41, fused.fc.shape[1], generator=torch.Generator().manual_seed(0)).to(dtype)
    for piece in taps.split(22):
        reference.take(piece.float(), plain)
        fused.take(piece.to(device), state)
    want = reference.propose(torch.tensor(65), plain)
    found = fused.propose(torch.tensor(65, device=device), state)
    assert int(state.injected) == plain.injected == 41
    assert not state.keys[:, 0, :, :17].any()  # the first 22 rows but a window
    assert (found.log_odds.cpu() - want.log_odds).abs().max() < 40 * FUSED[dtype]
