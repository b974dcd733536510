# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Once recorded, a round is enqueued without allocation, synchronisation or copy to the host."""

import pytest
import torch

from hybridspec import LLM, SamplingParams
from hybridspec.engine.loop import Feed
from hybridspec.models.embedded import heldout_prompts

pytestmark = pytest.mark.gpu


@pytest.fixture
def watched():
    """Any wait of the host for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture(scope="module", params=["fixed", "hybrid"])
def rounds(request):
    llm = LLM(device="cuda", policy=request.param, length=5 if request.param == "fixed" else None)
    prompt = llm.pair.tokenizer.encode(heldout_prompts("test")[0])
    begun = llm._begin(prompt, SamplingParams(max_new_tokens=400))
    with torch.inference_mode():
        for _ in range(3):  # compiled, recorded, replayed
            begun.drafted_round()
            begun.plain_round()
    torch.cuda.synchronize()
    return begun


@torch.inference_mode()
def test_a_recorded_round_allocates_nothing_and_waits_for_nothing(rounds, watched):
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        rounds.drafted_round()
        rounds.plain_round()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@torch.inference_mode()
def test_a_feed_that_reads_one_round_late_waits_for_no_stream(rounds, watched):
    torch.cuda.set_sync_debug_mode("default")
    feed = Feed.of(rounds, ahead=1)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(10):
        assert feed.next().tokens
