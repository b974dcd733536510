# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Damage to the fields of config.json, which stays JSON."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.mutations.checkpoint import Checkpoint, Json, Mutation


def fields_of(config: Json) -> Iterator[tuple[Json, str]]:
    """Every field, with the object that it stands in."""
    for name, value in config.items():
        yield config, name
        if isinstance(value, dict):
            yield from fields_of(value)


ANY = (dict, list, str, int, float, bool, type(None))


def _change_field(
    rng: Random, it: Checkpoint, change: Callable[[Json, str], None], only: tuple[type, ...] = ANY
) -> None:
    """Apply a change to one field, of those whose value has one of the types."""

    def pick(config: Json) -> None:
        change(*rng.choice([(o, name) for o, name in fields_of(config) if type(o[name]) in only]))

    it.edit_config(pick)


def _set(value: Any) -> Callable[[Json, str], None]:
    return lambda owner, name: owner.update({name: value})


def remove_field(rng: Random, it: Checkpoint) -> None:
    _change_field(rng, it, lambda owner, name: owner.pop(name))


def rename_field(rng: Random, it: Checkpoint) -> None:
    def change(owner: Json, name: str) -> None:
        new = rng.choice([name.upper(), f"{name}s", f" {name}", name[:-1], f"text_{name}", ""])
        owner[new] = owner.pop(name)

    _change_field(rng, it, change)


def empty_field(rng: Random, it: Checkpoint) -> None:
    _change_field(rng, it, _set(None))


def mistype_field(rng: Random, it: Checkpoint) -> None:
    values = ["4", "", "x" * 5000, "\ud800", [], [4], [[]], [1] * 3000, {}, {"a": {"b": 4}}]
    values += [True, False, {"x" * 900: "\n"}, "silu\n", [None], 2]
    _change_field(rng, it, _set(rng.choice(values)))


NUMBERS = (
    -1, 0, 1, 2, 3, 5, 64, 1000, 10**6, 2**24, 2**24 + 1, 2**31, 2**32 - 1, 2**63, 2**64, 10**30,
    10**300, 10**4000, -(10**18), 1e-300, 1e-45, 1e-20, 1e20, 1e300, -0.0, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip


def misplace_number(rng: Random, it: Checkpoint) -> None:
    _change_field(rng, it, _set(rng.choice(NUMBERS)), only=(int, float))


def enlarge_number(rng: Random, it: Checkpoint) -> None:
    """By powers of two up to the largest size: what would be reserved before it is compared?"""

    def change(owner: Json, name: str) -> None:
        owner[name] = min(2**24, int(owner[name] or 1) << rng.randrange(1, 25))

    _change_field(rng, it, change, only=(int,))


def fraction_for_whole(rng: Random, it: Checkpoint) -> None:
    def change(owner: Json, name: str) -> None:
        value = owner[name]
        owner[name] = rng.choice([float(value), value + 0.5, f"{value}", value + 1e-9])

    _change_field(rng, it, change, only=(int,))


def change_list(rng: Random, it: Checkpoint) -> None:
    def change(owner: Json, name: str) -> None:
        value = owner[name] if isinstance(owner[name], list) else [owner[name]]
        item = rng.choice([None, "full_attention", "x" * 3000, -1, 1, 0, 3, 2**40, 0.5, [], True])
        owner[name] = rng.choice([
            value[:-1], [*value, *value], [*value, item], [item], value[::-1], [], value[:1] * 900,
            [item] * len(value),
        ])  # fmt: skip

    _change_field(rng, it, change, only=(list,) if rng.random() < 0.7 else (int, str))


def change_nesting(rng: Random, it: Checkpoint) -> None:
    config = it.json("config.json")
    objects = [name for name, value in config.items() if isinstance(value, dict)]
    if objects and rng.random() < 0.6:
        config |= config.pop(rng.choice(objects))
    else:
        names = rng.sample(sorted(config), rng.randrange(1, len(config)))
        into = rng.choice(["text_config", "dflash_config", "rope_parameters", "rope_scaling"])
        moved = {name: config.pop(name) for name in names}
        before = config.get(into)
        config[into] = (before if isinstance(before, dict) else {}) | moved
    it.put_json("config.json", config)


KINDS: dict[str, Mutation] = {
    "field removed": remove_field,
    "field renamed": rename_field,
    "field null": empty_field,
    "field of another type": mistype_field,
    "number out of range": misplace_number,
    "size too large": enlarge_number,
    "fraction for a whole number": fraction_for_whole,
    "list": change_list,
    "nesting": change_nesting,
}
