# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Loading straight into the engine's layout: the same numbers and errors, and no second copy."""

from dataclasses import fields, is_dataclass
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

from hybridspec.core.errors import CheckpointError, OptionError
from hybridspec.engine.loading import Checkpoint
from hybridspec.engine.memory import held_bytes
from hybridspec.models import fused_loading
from hybridspec.models.fused import FusedTarget
from hybridspec.models.fused_draft import FusedDrafter
from hybridspec.models.reading import Outline, Staged
from tests.alive import alive_bytes
from tests.decoding import CPU, load, load_draft
from tests.models.fused_cases import DRAFTER, LAYERS, TARGET
from tests.tiny import write_drafter, write_target
from tests.tiny_target import EXPERTS, EXTRAS, Layout

DENSE_FIRST, EVERYWHERE = LAYERS["a dense layer first"], LAYERS["experts everywhere"]
TAPS = (0, 2)


class File:
    """A safetensors file of one tensor."""

    def __init__(self, tensor):
        self._tensor = tensor

    def get_tensor(self, name):
        return self._tensor


class Allocations(TorchDispatchMode):
    """Bytes of what operations made anew, in order."""

    def __init__(self):
        super().__init__()
        self.sizes = list[int]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        given = {x.untyped_storage()._cdata for x in args if isinstance(x, torch.Tensor)}
        if isinstance(found, torch.Tensor) and found.untyped_storage()._cdata not in given:
            self.sizes.append(found.untyped_storage().nbytes())
        return found


def fused_of(directory, drafter=None, *, dtype=torch.bfloat16, read=None):
    found = Checkpoint.found(directory, drafter, needs_drafter=False)
    return found.fused("exact", read or Staged(CPU, dtype))


def packed(directory, drafter=None, *, dtype=torch.bfloat16):
    """The same by way of a whole model in float32."""
    plain = load(directory, taps=TAPS if drafter else ())
    target = FusedTarget.of(plain, mode="exact", dtype=dtype, device=CPU)
    if drafter is None:
        return target, None
    draft = load_draft(drafter, plain)
    return target, FusedDrafter.of(draft, embedding=target.embedding, head=target.head)


def tensors_of(value, name=""):
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, tuple):
        for place, part in enumerate(value):
            yield from tensors_of(part, f"{name}.{place}")
    elif is_dataclass(value):
        for part in fields(value):
            if part.name not in ("buffers", "stream"):  # of a pass, not of the model
                yield from tensors_of(getattr(value, part.name), f"{name}.{part.name}")


def assert_same(found, want):
    mine, theirs = dict(tensors_of(found)), dict(tensors_of(want))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        other = theirs[name]
        assert (tensor.dtype, tensor.stride()) == (other.dtype, other.stride()), name
        assert torch.equal(tensor, other), name


# the same numbers


@given(
    shape=st.lists(st.integers(1, 9), min_size=0, max_size=3),
    stored=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    kept=st.sampled_from([torch.float32, torch.bfloat16]),
    stage=st.integers(4, 70),
)
def test_a_staged_tensor_is_the_file_s_in_the_dtype_that_is_kept(shape, stored, kept, stage):
    source = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(stored)
    found = Staged(CPU, kept, stage_bytes=stage)(File(source), "x")
    assert torch.equal(found, source.to(kept if len(shape) > 1 else torch.float32))


@given(place=st.integers(0, 99), bad=st.sampled_from([float("nan"), float("inf"), -float("inf")]))
def test_a_number_that_is_none_is_found_in_any_piece(place, bad):
    source = torch.zeros(10, 10)
    source.view(-1)[place] = bad
    assert Staged(CPU, torch.bfloat16, stage_bytes=28)(File(source), "x") is None


@pytest.mark.parametrize(
    ("family", "experts", "prefix"),
    [*product(["qwen3_5_moe"], EXPERTS, EXTRAS), *product(["qwen3_next"], EXPERTS, ["model."])],
)
def test_every_layout_is_packed_as_a_whole_model_would_be(tmp_path, family, experts, prefix):
    layers = EVERYWHERE if family == "qwen3_5_moe" else DENSE_FIRST | {"family": family}
    layout = Layout(experts=experts, prefix=prefix, shards=2, has_extras=True)
    directory = write_target(tmp_path, layout=layout, **TARGET | layers)
    assert_same(fused_of(directory), packed(directory))


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kept", [torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_is_packed_as_a_whole_model_would_be(tmp_path, stored, kept):
    layout = Layout(dtype=stored, kept=("A_log", "linear_attn.norm.weight"))
    directory = write_target(tmp_path, layout=layout, **TARGET | EVERYWHERE)
    assert_same(fused_of(directory, dtype=kept), packed(directory, dtype=kept))


@pytest.mark.parametrize("is_in_file", [False, True])
def test_a_tied_head_is_the_embedding_itself(tmp_path, is_in_file):
    directory = write_target(tmp_path, **TARGET | EVERYWHERE, tie_word_embeddings=True)
    if is_in_file:
        tensors = load_file(directory / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, directory / "model.safetensors")
    target, _ = fused_of(directory)
    assert target.head is target.embedding


@pytest.mark.parametrize("extra", [(), ("embed_tokens.weight",)])
def test_a_drafter_is_packed_as_a_whole_model_would_be(tmp_path, extra):
    directory = write_target(tmp_path / "target", **TARGET | EVERYWHERE)
    drafter = write_drafter(tmp_path / "drafter", **DRAFTER)
    tensors, theirs = (load_file(d / "model.safetensors") for d in (drafter, directory))
    save_file(tensors | {n: theirs[f"model.{n}"] for n in extra}, drafter / "model.safetensors")
    found = fused_of(directory, drafter)
    assert_same(found, packed(directory, drafter))
    assert found[1].head is found[0].head


# the same errors

ROUTER = "model.layers.1.mlp.gate.weight"
DAMAGE = {
    "missing": lambda tensors: tensors.pop(ROUTER),
    "unknown": lambda tensors: tensors.update(stray=torch.ones(2)),
    "shape": lambda tensors: tensors.update({ROUTER: tensors[ROUTER][1:].clone()}),
    "dtype": lambda tensors: tensors.update({ROUTER: tensors[ROUTER].to(torch.int32)}),
    "layouts": lambda tensors: tensors.update(
        {"model.layers.1.mlp.experts.0.gate_proj.weight": torch.ones(2)}
    ),
    "NaN": lambda tensors: tensors[ROUTER].fill_(float("nan")),
}


def message(call):
    with pytest.raises(CheckpointError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_in_the_words_of_the_whole_model(tmp_path, damage):
    directory = write_target(tmp_path, **TARGET | EVERYWHERE)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    DAMAGE[damage](tensors)
    save_file(tensors, file)
    want = message(lambda: load(directory, taps=()))
    assert message(lambda: fused_of(directory)) == want
    if damage != "NaN":  # an outline reads no numbers
        assert message(lambda: fused_of(directory, read=Outline(torch.bfloat16))) == want


def test_a_drafter_with_an_embedding_of_its_own_is_refused(tmp_path):
    directory = write_target(tmp_path / "target", **TARGET | EVERYWHERE)
    drafter = write_drafter(tmp_path / "drafter", **DRAFTER)
    file = drafter / "model.safetensors"
    save_file(load_file(file) | {"embed_tokens.weight": torch.ones(288, 128)}, file)
    assert "is not the target's" in message(lambda: fused_of(directory, drafter))


def test_a_width_that_kernels_lack_is_refused_before_a_tensor_is_read(tmp_path, monkeypatch):
    directory = write_target(tmp_path, **TARGET | EVERYWHERE | {"linear_key_head_dim": 24})
    monkeypatch.setattr(fused_loading, "read_target", None)
    with pytest.raises(OptionError, match=r"linear_key_head_dim .*--device cpu"):
        fused_of(directory)


# memory


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_host_holds_no_more_of_a_tensor_than_a_stage(stored):
    source, stage = torch.zeros(256, 1024, dtype=stored), 4096
    read = Staged(CPU, torch.bfloat16, stage_bytes=stage)
    with Allocations() as made:
        held = read(File(source), "x")
    assert [size for size in made.sizes if size > stage] == [held.nbytes]


@pytest.mark.parametrize("experts", EXPERTS)
def test_never_more_is_held_than_the_model_and_one_layer(tmp_path, monkeypatch, experts):
    sizes = EVERYWHERE | {"num_hidden_layers": 8, "layer_types": ["linear_attention"] * 8}
    layout = Layout(experts=experts, dtype=torch.bfloat16)
    directory = write_target(tmp_path, layout=layout, **TARGET | sizes)
    pieces, seen, fuse = 1 << 12, list[int](), fused_loading.fuse
    before = alive_bytes()

    def watched(layer, width, to):
        done = fuse(layer, width, to)
        seen.append(alive_bytes() - before)
        return done

    class Watched(Staged):
        def __call__(self, file, name):
            found = super().__call__(file, name)
            seen.append(alive_bytes() - before)
            return found

    monkeypatch.setattr(fused_loading, "fuse", watched)
    target, _ = fused_of(directory, read=Watched(CPU, torch.bfloat16, stage_bytes=pieces))
    layer = held_bytes(target.layers[0])
    whole = held_bytes(target)
    assert len(seen) > 8 * 10
    assert max(seen) <= whole + layer + 4 * pieces
    assert whole > 6 * layer  # so that a second copy of all would be seen


# progress


def test_progress_counts_the_bytes_of_the_parts_that_are_run(tmp_path):
    layout = Layout(has_extras=True, shards=2, dtype=torch.bfloat16)
    directory = write_target(tmp_path / "target", layout=layout, **TARGET | EVERYWHERE)
    drafter = write_drafter(tmp_path / "drafter", **DRAFTER)
    told = list[tuple[str, int, int]]()
    found = Checkpoint.found(directory, drafter, needs_drafter=True)
    found.fused("exact", Staged(CPU, torch.bfloat16), lambda *words: told.append(words))
    sizes = {"drafter": sum(x.nbytes for x in load_file(drafter / "model.safetensors").values())}
    shards = [load_file(file) for file in directory.glob("*.safetensors")]
    sizes["target"] = sum(
        x.nbytes for shard in shards for n, x in shard.items() if n not in EXTRAS["model."]
    )
    for what, size in sizes.items():
        steps = [done for name, done, total in told if name == what and total == size]
        assert steps == sorted(steps)
        assert steps[-1] == size
    assert [name for name, *_ in told] == sorted((n for n, *_ in told), reverse=True)
