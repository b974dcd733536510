# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Sliding and stretched drafters against the definition: windows, causality, YaRN, and memory."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridspec import LLM, SamplingParams
from hybridspec.core.errors import CheckpointError
from hybridspec.core.options import MAX_ROWS
from hybridspec.models.dflash import RING_ROWS, block_view
from tests.decoding import CPU, load_draft
from tests.draft_judge import Judge, check_block
from tests.tiny import DRAFTER, MASK_ID, RETRAIN, V1, write_drafter, write_json
from tests.tolerances import DRAFTER as CLOSE
from tests.tolerances import distance

FULL, SLIDING = "full_attention", "sliding_attention"
BLOCKS = [2, 3, 8, 16]


def random_taps(rows, layers, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(rows, layers * DRAFTER["hidden_size"], generator=gen)


def options(shape, block):
    return {"dflash_config": shape["dflash_config"] | {"block_size": block}}


def proposed(drafter, taps, *, pieces=None, anchor=65):
    """The block after these taps; blocks are drafted, and overwritten, after every piece."""
    state = drafter.empty_state(len(taps))
    for piece in taps.split(pieces or [len(taps)]):
        drafter.propose(torch.tensor(7), state)
        drafter.take(piece, state)
    return drafter.propose(torch.tensor(anchor), state), state


def agrees(target, directory, context, pieces=None):
    drafter = load_draft(directory, target)
    taps = random_taps(context, len(drafter.config.target_layer_ids))
    block, state = proposed(drafter, taps, pieces=pieces)
    check_block(block, Judge(directory, drafter).logits(taps, 65), MASK_ID)
    return drafter, state


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("context", [0, 1, 31, 32, 33, 200])
def test_full_layers_under_yarn_equal_the_definition(target, tmp_path, context, block):
    agrees(target, write_drafter(tmp_path, shape=V1, **options(V1, block)), context)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("context", [0, 1, 7, 8, 9, 22, 23, 24, 25, 100])
def test_sliding_beside_full_layers_equal_the_definition(target, tmp_path, context, block):
    agrees(target, write_drafter(tmp_path, shape=RETRAIN, **options(RETRAIN, block)), context)


@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 40, 41, 48, 49, 500])
@pytest.mark.parametrize("types", [[SLIDING] * 2, [SLIDING, FULL], [FULL] * 2])
def test_windows_of_any_width_equal_the_definition(target, tmp_path, types, window, is_causal):
    """Below, at and above a block of 8 rows, a context of 40 and both together."""
    changes = {"layer_types": types, "num_hidden_layers": 2, "sliding_window": window}
    changes |= options(RETRAIN, 8) | {"is_causal": is_causal}
    changes |= {"use_sliding_window": SLIDING in types}
    agrees(target, write_drafter(tmp_path, shape=RETRAIN, **changes), 40)


@settings(max_examples=80)
@given(data=st.data())
def test_drafters_of_any_shape_equal_the_definition(target, data):
    """Injected in pieces, with a block that is rejected between them."""
    types = data.draw(st.lists(st.sampled_from([FULL, SLIDING]), min_size=1, max_size=3))
    HKV, groups = data.draw(st.sampled_from([(1, 4), (2, 3), (3, 1), (4, 2)]))
    pieces = data.draw(st.lists(st.integers(1, 70), max_size=5))
    changes = options(RETRAIN, data.draw(st.integers(2, MAX_ROWS)))
    changes |= {
        "num_hidden_layers": len(types),
        "layer_types": types,
        "use_sliding_window": SLIDING in types,
        "sliding_window": data.draw(st.integers(1, 40)),
        "is_causal": data.draw(st.sampled_from([None, True, False])),
        "num_attention_heads": HKV * groups,
        "num_key_value_heads": HKV,
        "rope_scaling": data.draw(st.sampled_from([None, V1["rope_scaling"]])),
    }
    with tempfile.TemporaryDirectory() as folder:
        directory = write_drafter(Path(folder), shape=RETRAIN, **changes)
        agrees(target, directory, sum(pieces), pieces or None)


@pytest.mark.parametrize("pieces", [[100], [1] * 100, [16] * 6 + [4], [48, 1, 51], [3, 64, 33]])
@pytest.mark.parametrize("shape", [V1, RETRAIN])
def test_injection_in_pieces_is_injection_at_once(target, tmp_path, shape, pieces):
    directory = write_drafter(tmp_path, shape=shape)
    drafter, state = agrees(target, directory, 100, pieces)
    assert state.injected == 100
    taps = random_taps(100, len(drafter.config.target_layer_ids))
    for found, want in zip(
        (state.keys, state.values), Judge(directory, drafter).context(taps), strict=True
    ):
        assert distance(found[:, :, :100].transpose(1, 2), want) < CLOSE


@pytest.mark.parametrize("window", [1, 2, 9, 30])
@pytest.mark.parametrize("pieces", [[300], [1] * 300, [64] * 4 + [44], [7] * 42 + [6]])
def test_a_drafter_of_sliding_layers_keeps_two_windows(target, tmp_path, window, pieces):
    changes = {"layer_types": [SLIDING] * 3, "sliding_window": window}
    directory = write_drafter(tmp_path, shape=RETRAIN, **changes)
    _, state = agrees(target, directory, 300, pieces)
    assert state.keys.shape[2] == state.values.shape[2] == 2 * (window - 1) + MAX_ROWS
    assert state.injected == 300
    assert state.waiting <= RING_ROWS


def test_a_context_within_the_window_needs_no_more_room_than_itself(target, tmp_path):
    changes = {"layer_types": [SLIDING] * 3, "sliding_window": 500}
    directory = write_drafter(tmp_path, shape=RETRAIN, **changes)
    _, state = agrees(target, directory, 100, [30, 70])
    assert state.keys.shape[2] == 100 + MAX_ROWS


def test_layers_that_see_everything_need_no_mask():
    for start, rows, window in ((0, 16, None), (5000, 16, None), (0, 16, 16), (100, 8, 108)):
        view = block_view(start, rows, window=window, is_causal=False, device=CPU)
        assert (view.first, view.mask) == (0, None)
    assert block_view(100, 8, window=107, is_causal=False, device=CPU).mask is not None


def test_the_window_counts_the_row_itself():
    view = block_view(10, 3, window=4, is_causal=True, device=CPU)
    assert view.first == 7
    assert view.mask is not None
    # positions 7 to 12; rows at 10, 11 and 12
    assert view.mask.int().tolist() == [[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_key_value_heads": 8}, ["layers.0.self_attn.k_proj", "num_key_value_heads 8"]),
        ({"num_key_value_heads": 2}, ["layers.0.self_attn.k_proj", "num_key_value_heads 2"]),
        ({"num_attention_heads": 4}, ["layers.0.self_attn.q_proj", "num_attention_heads 4"]),
        ({"head_dim": 24}, ["layers.0.self_attn.q_proj", "head_dim 24"]),
        ({"num_attention_heads": 4, "head_dim": 24}, ["k_proj", "num_attention_heads 4"]),
    ],
)
def test_heads_that_the_tensors_do_not_have_are_named(target, tmp_path, changes, named):
    directory = write_drafter(tmp_path, shape=RETRAIN)
    write_json(directory / "config.json", RETRAIN | changes)
    with pytest.raises(CheckpointError) as caught:
        load_draft(directory, target)
    for words in (*named, str(directory / "config.json"), "of one drafter"):
        assert words in str(caught.value)


@pytest.mark.parametrize("shape", [V1, RETRAIN, RETRAIN | {"layer_types": [SLIDING] * 3}])
def test_both_shapes_decode_what_plain_decoding_does(tiny_target, tmp_path, shape):
    directory = write_drafter(tmp_path / "drafter", shape=shape)
    llm = LLM(tiny_target, draft_model=directory, policy="fixed")
    few = SamplingParams(max_new_tokens=40)
    found = llm.generate("x" * 70, few)
    assert found.token_ids == llm.using(policy="plain").generate("x" * 70, few).token_ids
