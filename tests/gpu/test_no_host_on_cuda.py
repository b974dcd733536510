# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Once recorded, a round is enqueued without allocation, synchronisation or copy to the host."""

import pytest
import torch

from hybridspec import LLM
from hybridspec.engine.loop import Feed
from hybridspec.models.embedded import heldout_prompts
from hybridspec.policy.policy import Fixed
from tests.shipped import begun, prompt_of, shipped
from tests.watching import Crossings

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
    with llm.opening.text(prompt, 400) as begun:
        with torch.inference_mode():
            for _ in range(3):  # compiled, recorded, replayed
                begun.drafted_round()
                begun.plain_round()
        torch.cuda.synchronize()
        yield begun


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


@torch.inference_mode()
def test_of_a_round_the_host_gets_a_slot_of_the_ring_and_nothing_else():
    """Compiled, recorded and replayed; whatever a graph would copy is seen while it is recorded."""
    pair = shipped("cuda")
    policy = Fixed(5, device=pair.target.head.device)
    rounds = begun(pair, prompt_of(pair, 0, 100), policy, budget=200)
    feed = Feed.of(rounds, ahead=1)
    with Crossings() as crossings:
        for _ in range(6):
            feed.next()
        rounds.plain_round()
        rounds.plain_round()
    slot = rounds.request.ledger.ring[0].nbytes
    assert set(crossings.sizes) == {slot}
    assert len(crossings.sizes) == 7  # one round is ahead
    with Crossings() as crossings:
        rounds.request.target.recurrent.cpu()
    assert crossings.sizes == [rounds.request.target.recurrent.nbytes]
