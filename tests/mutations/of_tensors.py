# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Damage to tensors: their names, shapes, dtypes, numbers and places."""

from random import Random

import torch
from safetensors.torch import load, save
from torch import Tensor

from tests.mutations.checkpoint import Checkpoint, Mutation, split


def _pick(rng: Random, tensors: dict[str, Tensor]) -> str:
    return rng.choice(sorted(tensors))


def rename_tensor(rng: Random, it: Checkpoint) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        name = _pick(rng, tensors)
        parts = name.split(".")
        i = rng.randrange(len(parts))
        new = rng.choice([
            name.upper(), f"x.{name}", f"{name}.weight", name.removesuffix(".weight"), name[:-1],
            "mtp." + name, name.replace("layers.0", "layers.00"), "ä\n" + name * 40, "",
            ".".join(parts[:i] + parts[i + 1 :]), name.replace("layers.", "layers.1"),
            name.replace("experts.", "experts.9"), name.replace("model.", "model.language_model."),
        ])  # fmt: skip
        tensors[new] = tensors.pop(name)

    it.edit(rng, change)


def remove_tensor(rng: Random, it: Checkpoint) -> None:
    it.edit(rng, lambda tensors: tensors.__delitem__(_pick(rng, tensors)))


def add_tensor(rng: Random, it: Checkpoint) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        name = _pick(rng, tensors)
        new = rng.choice([
            f"{name}_scale_inv", f"{name}.bias", "stray", "mtp.stray", "model.visual.stray",
            name.replace("layers.0", "layers.2"), "lm_head.weight", "embed_tokens.weight",
            "vision_tower.x", "language_model.mtp.x", f"model.{name}",
        ])  # fmt: skip
        tensors[new] = tensors[name].clone()

    it.edit(rng, change)


def swap_tensors(rng: Random, it: Checkpoint) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        one, other = _pick(rng, tensors), _pick(rng, tensors)
        alike = [name for name, x in tensors.items() if x.shape == tensors[one].shape]
        other = rng.choice([other, *sorted(alike)])
        tensors[one], tensors[other] = tensors[other].clone(), tensors[one].clone()

    it.edit(rng, change)


def store_twice(rng: Random, it: Checkpoint) -> None:
    split(rng, it)
    one, other = rng.sample(it.weights(), 2)
    source = load(it.files[one])
    name = _pick(rng, source)
    again = source[name] if rng.random() < 0.5 else source[name] + 1
    it.files[other] = save(load(it.files[other]) | {name: again})


def change_shape(rng: Random, it: Checkpoint) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        name = _pick(rng, tensors)
        x = tensors[name]
        tensors[name] = rng.choice([
            lambda: x[:-1], lambda: x[..., :-1], lambda: x.mT if x.dim() > 1 else x[:, None],
            lambda: x[None], lambda: x[..., None], lambda: x[:0], lambda: x.flatten()[0],
            lambda: torch.cat([x, x]), lambda: x.flatten(), lambda: torch.cat([x, x], -1),
        ])().clone(memory_format=torch.contiguous_format)  # fmt: skip

    it.edit(rng, change)


def _cast(rng: Random, it: Checkpoint, dtypes: list[torch.dtype]) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        count = rng.choice([1, 3, len(tensors)])
        for name in rng.sample(sorted(tensors), min(count, len(tensors))):
            tensors[name] = tensors[name].to(rng.choice(dtypes))

    it.edit(rng, change)


def store_as_floats(rng: Random, it: Checkpoint) -> None:
    _cast(rng, it, [torch.float16, torch.bfloat16])


def store_as_others(rng: Random, it: Checkpoint) -> None:
    others = [torch.int8, torch.uint8, torch.int64, torch.float64, torch.bool]
    _cast(rng, it, [*others, torch.float8_e4m3fn, torch.float8_e5m2])


def spoil_numbers(rng: Random, it: Checkpoint) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        x = tensors[_pick(rng, tensors)].view(-1)
        x[rng.randrange(len(x))] = rng.choice([float("nan"), float("inf"), float("-inf")])

    it.edit(rng, change)


KINDS: dict[str, Mutation] = {
    "tensor renamed": rename_tensor,
    "tensor removed": remove_tensor,
    "tensor added": add_tensor,
    "tensors swapped": swap_tensors,
    "tensor in two shards": store_twice,
    "shape": change_shape,
    "float dtype": store_as_floats,
    "other dtype": store_as_others,
    "no number": spoil_numbers,
}
