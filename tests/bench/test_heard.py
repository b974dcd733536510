# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Every layer's experts are heard as its router chose them, in plain operations and in launches."""

import pytest
import torch

pytest.importorskip("triton")

from hybridspec.bench.record import listening
from tests.models.fused_cases import (
    LAYERS,
    few_programs,  # noqa: F401
    read,
    twins,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning"),
    pytest.mark.usefixtures("few_programs"),
]
BLOCK = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize("layers", LAYERS)
@torch.inference_mode()
def test_what_is_heard_is_the_same_in_plain_operations_and_in_launches(layers, tmp_path):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pair = twins(tmp_path, device, torch.float32, "exact", layers)
    plain, fused = pair.states(64)
    heard = []
    for target, state in ((pair.reference, plain), (pair.fused, fused)):
        listener = listening(target)
        found, want = read(listener, BLOCK, 5, state), read(target, BLOCK, 5, state)
        assert torch.equal(found.tokens[:5], want.tokens[:5])
        heard.append([ids[:5].sort(1).values.cpu().long() for ids in listener.heard])
    routers = 3 if layers == "experts everywhere" else 2
    assert [len(ids) for ids in heard] == [routers, routers]
    for one, other in zip(*heard, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(heard[0][0], heard[0][1]), "layers that choose alike prove nothing"
