# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""What a pair will take is known before it is loaded, and what does not fit is not begun."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hybridspec import LLM, SamplingParams
from hybridspec.core.errors import OptionError
from hybridspec.core.options import MAX_ROWS
from hybridspec.engine import loading, memory, opening
from hybridspec.engine.loading import Checkpoint
from hybridspec.engine.memory import WORKSPACE, Memory, free_bytes, held_bytes
from hybridspec.kernels.reference.attention import PAGE
from hybridspec.models.reading import Outline, Staged, Widened
from tests.alive import alive_bytes
from tests.decoding import CPU
from tests.models.fused_cases import DRAFTER, LAYERS, TARGET
from tests.tiny import RETRAIN, V1, write_drafter, write_target
from tests.tiny_target import Layout

CUDA = torch.device("cuda")
SMALL = {"max_position_embeddings": 3000}
FUSED = [
    LAYERS["experts everywhere"],
    LAYERS["a dense layer first"],
    LAYERS["experts everywhere"] | {"tie_word_embeddings": True},
]

SLIDES = {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}
SLIDES |= {"sliding_window": 150}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """In sizes that the kernels take, as on CUDA, and in tiny ones, as on a CPU."""
    found = []
    for place, (device, sizes, drafts) in enumerate(
        (("cuda", TARGET | FUSED[0], DRAFTER), ("cpu", {}, {}), ("cpu", {}, SLIDES))
    ):
        directory = tmp_path_factory.mktemp(f"pair{place}")
        target = write_target(directory / "target", **SMALL | sizes)
        draft = write_drafter(directory / "drafter", **drafts)
        pair = Checkpoint.found(target, draft, needs_drafter=True)
        found.append(pair.memory("exact", torch.device(device)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "describe", str)  # no CUDA device is there to name itself
        yield found


def held_anew(make):
    """What `make` returns, and the bytes that are held since."""
    before = alive_bytes()
    made = make()
    return made, alive_bytes() - before


# estimates


@pytest.mark.parametrize("layers", FUSED)
@pytest.mark.parametrize("experts", ["fused", "one by one"])
@pytest.mark.parametrize("positions", [1, 112, 113, 500])
def test_an_estimate_is_what_launches_hold_to_the_byte(tmp_path, layers, experts, positions):
    pytest.importorskip("triton")
    directory = write_target(
        tmp_path / "target", layout=Layout(experts=experts, shards=2), **TARGET | layers
    )
    draft = write_drafter(tmp_path / "drafter", **DRAFTER)
    found = Checkpoint.found(directory, draft, needs_drafter=True)
    read = Staged(CPU, torch.bfloat16)
    pair, weights = held_anew(lambda: found.fused("exact", read))
    states, request = held_anew(lambda: [model.empty_state(positions) for model in pair])
    estimate = found.memory("exact", CUDA)
    assert sum(estimate.weights().values()) == weights
    assert sum(estimate.request(positions).values()) == request
    assert estimate.parts(positions).keys() >= {"target weights", "drafter weights", "workspace"}
    assert len(states) == 2


@pytest.mark.parametrize("drafter", [{}, {"shape": V1}, {"shape": RETRAIN}, SLIDES])
@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next"])
def test_an_estimate_is_what_a_cpu_holds_to_the_byte(tmp_path, drafter, family):
    layout = Layout(dtype=torch.bfloat16)  # widened: nothing is used where it is mapped
    directory = write_target(tmp_path / "target", family=family, layout=layout)
    draft = write_drafter(tmp_path / "drafter", **drafter)
    found = Checkpoint.found(directory, draft, needs_drafter=True)
    target, weights = held_anew(lambda: found.plain("exact", Widened(CPU))[0])
    _, request = held_anew(lambda: target.empty_state(300))
    estimate = found.memory("exact", CPU)
    parts = estimate.weights()
    assert parts["target weights"] == weights
    assert sum(estimate.request(300).values()) - estimate.request(300)["drafter's context"] == (
        request
    )
    pair, _ = held_anew(lambda: found.plain("exact", Widened(CPU)))
    assert parts["drafter weights"] == held_bytes(
        [pair[1].rotary, *(x for x in of_layers(pair[1]))]
    )
    assert estimate.request(300)["drafter's context"] == held_bytes(pair[1].empty_state(300))


def of_layers(drafter):
    return [drafter.fc, drafter.hidden_norm, drafter.norm, drafter.layers]


def test_the_parts_are_what_their_names_say(pairs):
    pair = pairs[0]
    config, positions = pair.target.config, 1000
    found, twice = pair.parts(positions), pair.parts(2 * positions)
    pages = -(-(positions + MAX_ROWS) // PAGE)
    HV, K, V = 2, 16, 32
    row = config.num_key_value_heads * config.head_dim * 2
    assert found["keys and values"] == 2 * config.num_attention_layers * pages * PAGE * row
    conv = 3 * config.conv_width * 2
    states = config.num_gdn_layers * (HV * K * V * 4 + conv)
    assert found["GDN states"] == states + 4  # the length
    grown = {name for name in found if twice[name] > found[name]}
    assert grown == {"keys and values", "drafter's context"}


def test_a_head_beside_a_tied_embedding_is_counted_until_they_are_compared(tmp_path):
    pytest.importorskip("triton")
    from safetensors.torch import load_file, save_file

    sizes = TARGET | FUSED[2]
    alone = Checkpoint.found(write_target(tmp_path, **sizes), None, needs_drafter=False)
    before = sum(alone.memory("exact", CUDA).weights().values())
    tensors = load_file(tmp_path / "model.safetensors")
    head = tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    assert sum(alone.memory("exact", CUDA).weights().values()) == before + 2 * head.numel()


def test_an_estimate_holds_no_memory_and_reads_no_weight(tmp_path, monkeypatch):
    directory = write_target(tmp_path)
    found = Checkpoint.found(directory, None, needs_drafter=False)
    for reader in (Widened, Staged):
        monkeypatch.setattr(reader, "__call__", None)
    _, held = held_anew(lambda: found.memory("exact", CPU))
    assert held == 0


# what fits


@given(pair=st.integers(0, 2), share=st.floats(0, 1.2))
def test_the_longest_that_fits_does_fit_and_one_more_does_not(pairs, pair, share):
    known = pairs[pair]
    least, most = known.needed(1), known.needed(known.positions)
    free = int(least - 99 + share * (most - least + 198))
    for is_loaded in (False, True):
        if is_loaded:
            free -= least - known.needed(1, is_loaded=True)
        longest = known.longest(free, is_loaded=is_loaded)
        if longest:
            known.check(longest, free, is_loaded=is_loaded)
        if longest < known.positions:
            with pytest.raises(OptionError, match=f"{longest or 'not the shortest'}"):
                known.check(longest + 1, free, is_loaded=is_loaded)


def test_what_is_needed_never_falls_as_the_context_grows(pairs):
    for pair in pairs:
        needed = [pair.needed(n) for n in range(1, pair.positions + 1, 37)]
        assert needed == sorted(needed)


def test_more_positions_than_the_model_has_are_not_asked_for(pairs):
    pairs[0].check(10**9, pairs[0].needed(pairs[0].positions))


def test_loading_needs_room_for_a_layer_more(pairs):
    pair = pairs[0]
    parts = [*pair.target.layers, pair.target.embedding]
    assert pair.loading() == max(held_bytes(part) for part in parts)
    grown = Memory(target=Wide(pair.target), drafter=None, device=CUDA)
    assert grown.needed(1) == sum(grown.weights().values()) + (1 << 40)


class Wide:
    """A target one of whose layers takes a tebibyte."""

    def __init__(self, target):
        self.config, self.empty_state = target.config, target.empty_state
        self.embedding = target.embedding
        self.layers = (torch.empty(1 << 40, dtype=torch.uint8, device="meta"),)


def test_where_nobody_tells_what_is_free_nothing_is_refused(pairs):
    pairs[0].check(1, None)


def test_free_memory_of_a_cpu_is_what_the_system_calls_available(tmp_path):
    free = free_bytes(CPU)
    assert free is None or 1 << 20 < free < 1 << 50


# before loading, and before a request


def short_of(monkeypatch, size):
    for module in (loading, opening):
        monkeypatch.setattr(module, "free_bytes", lambda device: size)


def test_too_little_memory_is_refused_before_a_weight_is_read(tiny_pair, monkeypatch):
    target, draft = tiny_pair
    short_of(monkeypatch, 1 << 20)
    monkeypatch.setattr(Widened, "__call__", None)
    with pytest.raises(OptionError) as caught:
        LLM(target, draft_model=draft)
    for words in ("0.25 GiB", "0.00 GiB are free", "not the shortest context fits"):
        assert words in str(caught.value)


def test_a_context_that_does_not_fit_is_refused_with_the_longest_that_does(tiny_pair, monkeypatch):
    target, draft = tiny_pair
    known = Checkpoint.found(target, draft, needs_drafter=True).memory("exact", CPU)
    short_of(monkeypatch, known.needed(200))
    with pytest.raises(OptionError) as caught:
        LLM(target, draft_model=draft, max_context=400)
    (longest,) = re.findall(r"of (\d+) positions or less", str(caught.value))
    LLM(target, draft_model=draft, max_context=int(longest))
    with pytest.raises(OptionError):
        LLM(target, draft_model=draft, max_context=int(longest) + 1)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "9", True])
def test_a_context_that_is_no_count_is_refused(bad):
    with pytest.raises(OptionError, match="max_context"):
        LLM(max_context=bad)


def test_a_request_that_does_not_fit_is_refused_and_a_shorter_one_decodes(tiny_pair, monkeypatch):
    target, draft = tiny_pair
    llm = LLM(target, draft_model=draft, policy="plain")
    known = replace(llm.pair.memory, drafter=None)  # plain decoding keeps no context of its own
    short_of(monkeypatch, known.needed(100, is_loaded=True))
    with pytest.raises(OptionError) as caught:
        llm.generate("x" * 20, SamplingParams(max_new_tokens=300))
    (longest,) = re.findall(r"of (\d+) positions or less", str(caught.value))
    few = SamplingParams(max_new_tokens=int(longest) - 20)
    assert llm.generate("x" * 20, few).token_ids
    assert known.device == CPU


def test_random_weights_that_do_not_fit_are_refused_before_they_are_drawn(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from hybridspec.bench import random_pair
    from tests.bench.tiny_shape import tiny_shape

    scene = random_pair.Scene(
        mode="exact", world="chat", persistence=None, context=9, max_new_tokens=9
    )
    monkeypatch.setattr(random_pair, "free_bytes", lambda device: 1 << 20)
    monkeypatch.setattr(random_pair, "draw_acceptances", None)
    with pytest.raises(OptionError, match="18 positions need"):
        random_pair.RandomPair.made(tiny_shape(tmp_path, block_size=3), scene, CPU)


def test_an_outline_and_what_is_read_have_the_same_shapes(tmp_path):
    found = Checkpoint.found(write_target(tmp_path), None, needs_drafter=False)
    outline, _ = found.plain("exact", Outline(torch.float32))
    target, _ = found.plain("exact", Widened(CPU))
    assert outline.head.shape == target.head.shape
    assert [layer.mixer.in_proj.shape for layer in outline.layers] == [
        layer.mixer.in_proj.shape for layer in target.layers
    ]
    assert WORKSPACE.keys() == {"cpu", "cuda"}
    assert memory.gibibytes(3 << 29) == "1.50 GiB"
