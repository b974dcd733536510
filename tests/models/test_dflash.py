# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""The drafter against its definition (`tests/draft_judge.py`), all layers full."""

from dataclasses import replace

import pytest
import torch

from hybridspec.core.errors import CheckpointError
from hybridspec.kernels.reference.head import read_head
from hybridspec.kernels.reference.norm import rms_norm
from hybridspec.models.dflash import RING_ROWS
from hybridspec.models.state import TargetState
from tests.decoding import CPU, TAPS, begin, load, load_draft, logits_of, plain
from tests.draft_judge import Judge, check_block
from tests.tiny import MASK_ID, VOCAB, SteeredDrafter, write_drafter
from tests.tolerances import DRAFTER, distance

TOKENS = torch.randint(VOCAB, (100,), generator=torch.Generator().manual_seed(5))


def read(target, tokens):
    state = TargetState.empty(target.config, len(tokens), CPU)
    readings = [target.read_prompt(piece, state) for piece in tokens.split(64)]
    return torch.cat([reading.taps for reading in readings]), readings[-1]


def proposed(drafter, taps, anchor):
    state = drafter.empty_state(len(taps))
    drafter.take(taps, state)
    return drafter.propose(torch.tensor(anchor), state)


def injected(state):
    """Context keys and values as [layers, positions, HKV, D]."""
    return [x[:, :, : state.injected].transpose(1, 2) for x in (state.keys, state.values)]


@pytest.mark.parametrize("block_size", [2, 4, 8, 16])
@pytest.mark.parametrize("context", [1, 2, 63, 64, 65, 100])
def test_drafts_equal_the_definition(target, tmp_path, context, block_size):
    directory = write_drafter(tmp_path, block_size=block_size)
    drafter = load_draft(directory, target)
    taps, _ = read(target, TOKENS[:context])
    block = proposed(drafter, taps, 65)
    assert int(block.tokens[0]) == 65
    check_block(block, Judge(directory, drafter).logits(taps, 65), MASK_ID)


def test_the_anchor_and_every_tap_matter(target, drafter):
    taps, _ = read(target, TOKENS[:30])
    want = proposed(drafter, taps, 65).log_odds
    assert not torch.equal(proposed(drafter, taps, 66).log_odds, want)
    for layer in range(len(TAPS)):
        changed = taps.clone()
        changed[:, layer * 32 : layer * 32 + 32] = 0
        assert not torch.equal(proposed(drafter, changed, 65).log_odds, want)


def test_the_mask_is_never_drafted(tiny_drafter, target, drafter):
    taps, _ = read(target, TOKENS[:30])
    judge = Judge(tiny_drafter, drafter)
    judge.head = judge.head.clone()
    judge.head[MASK_ID] = 50 * judge.head[int(judge.logits(taps, 65)[4].argmax())]
    loud = replace(drafter, head=judge.head.float())
    assert (judge.logits(taps, 65).argmax(-1) == MASK_ID).any()
    block = proposed(loud, taps, 65)
    assert not (block.tokens == MASK_ID).any()
    quiet = judge.logits(taps, 65)
    quiet[:, MASK_ID] = -torch.inf
    assert torch.equal(block.tokens[1:], quiet.argmax(-1))


@pytest.mark.parametrize("pieces", [[100], [1] * 100, [16] * 6 + [4], [48, 1, 51], [3, 64, 33]])
def test_injection_in_pieces_is_injection_at_once(tiny_drafter, target, drafter, pieces):
    taps, _ = read(target, TOKENS)
    state = drafter.empty_state(len(taps))
    for piece in taps.split(pieces):
        drafter.take(piece, state)
        assert state.waiting <= RING_ROWS
        assert state.injected + state.waiting <= len(taps)
    drafter.inject(state)
    assert state.injected == len(taps)
    assert state.waiting == 0
    for found, want in zip(
        injected(state), Judge(tiny_drafter, drafter).context(taps), strict=True
    ):
        assert distance(found, want) < DRAFTER


def test_after_rejections_the_context_has_no_gap(tiny_drafter, target, drafter):
    prompt = b"import os\n"
    alone = begin(target, prompt)
    ids = [int(alone.request.ledger.anchor)]
    ids += [plain(alone).tokens[0] for _ in range(100)]
    scripted = SteeredDrafter(
        script=ids, prompt=len(prompt), right=[0, 3, 0, 15, 1, 7, 0, 0, 2, 14, 5]
    )
    scripted.real = drafter
    rounds = begin(target, prompt, drafter=scripted)
    for _ in range(11):
        rounds.drafted_round()
    state, length = rounds.request.draft, int(rounds.request.target.length)
    drafter.inject(state)
    assert state.injected == length == len(prompt) + sum(scripted.right) + 11
    text = torch.tensor([*prompt, *ids[: length - len(prompt)]])
    taps, _ = read(target, text)
    for found, want in zip(
        injected(state), Judge(tiny_drafter, drafter).context(taps), strict=True
    ):
        assert distance(found, want) < DRAFTER


def test_a_tap_is_the_raw_output_of_its_layer(tiny_target):
    """Models cut off after a tapped layer end in what the whole model taps there."""
    target = load(tiny_target)
    taps, last = read(target, TOKENS[:64])
    for number, tap in zip(TAPS, taps.chunk(len(TAPS), dim=1), strict=True):
        cut = replace(target, layers=target.layers[: number + 1], taps=(number,))
        alone, reading = read(cut, TOKENS[:64])
        assert torch.equal(alone, tap)
        normed = rms_norm(tap, target.norm, target.config.rms_norm_eps)
        assert torch.equal(read_head(normed, target.head)[0][-1:], reading.tokens)
    assert torch.equal(logits_of(target, last).argmax(-1)[-1:], last.tokens)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": 300}, ["vocab_size 300", "288"]),
        ({"hidden_size": 48}, ["hidden_size 48", "32"]),
        ({"dflash_config": {"mask_token_id": 288, "target_layer_ids": [0]}}, ["288"]),
        ({"dflash_config": {"mask_token_id": -1, "target_layer_ids": [0]}}, ["-1"]),
    ],
)
def test_a_drafter_of_another_target_is_refused(target, tmp_path, changes, named):
    directory = write_drafter(tmp_path, **changes)
    with pytest.raises(CheckpointError) as caught:
        load_draft(directory, target)
    for words in (*named, "trained for this target"):
        assert words in str(caught.value)


def test_a_tap_beyond_the_last_layer_is_refused(tiny_target):
    with pytest.raises(CheckpointError, match=r"layer 4, .* layers 0 to 3"):
        load(tiny_target, taps=(0, 4))
