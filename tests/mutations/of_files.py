# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Damage to files: text that is no JSON, bytes cut or zeroed, an index that lies, no file."""

import json
import struct
from random import Random

from safetensors.torch import load, save

from tests.mutations.checkpoint import INDEX, Checkpoint, Mutation, split
from tests.mutations.of_fields import fields_of


def damage_text(rng: Random, it: Checkpoint, name: str) -> None:
    """JSON that is none, or not what it seems."""
    text = it.files[name]
    place = rng.randrange(len(text))
    it.files[name] = rng.choice([
        lambda: text[:-1] + b",}", lambda: text[:place], lambda: text[:place] + b"\0" * 7,
        lambda: b"\xef\xbb\xbf" + text, lambda: text.decode().encode("utf-16"),
        lambda: text[:place] + b"\xff\xfe" + text[place:], lambda: text + text, lambda: b"[]",
        lambda: text[:1] + b'"hidden_size": 7, ' + text[1:], lambda: b"null", lambda: b"{}",
        lambda: text[:-1] + b', "hidden_size": 7}', lambda: text[:-1] + b', "hidden_size": NaN}',
        lambda: text[:-1] + b', "x": ' + b"[" * 99999 + b"]" * 99999 + b"}",
        lambda: text[:-1] + b', "hidden_size": 1' + b"0" * 9000 + b"}", lambda: b"\0" * len(text),
        lambda: text.replace(b'"', b"'"), lambda: b"{" * 200000, lambda: b'"' + b"a" * 99999,
        lambda: text[:place] + bytes([text[place] ^ (1 << rng.randrange(8))]) + text[place + 1 :],
    ])()  # fmt: skip


def damage_config(rng: Random, it: Checkpoint) -> None:
    damage_text(rng, it, "config.json")


def damage_tokenizer(rng: Random, it: Checkpoint) -> None:
    name = "tokenizer.json"
    if rng.random() < 0.4:
        damage_text(rng, it, name)
        return
    tokenizer = it.json(name)
    owner, key = rng.choice(
        [(o, k) for o, k in fields_of(tokenizer) if o is not tokenizer["model"]["vocab"]]
        + [(tokenizer["model"]["vocab"], rng.choice(sorted(tokenizer["model"]["vocab"])))] * 3
    )
    change = rng.randrange(4)
    if change == 0:
        del owner[key]
    elif change == 1:
        owner[f"{key}x"] = owner.pop(key)
    else:
        owner[key] = rng.choice([None, -1, 2**32 - 1, 2**31, 300, 287, 0, "x" * 3000, [], {}, True])
    it.put_json(name, tokenizer)


def damage_generation(rng: Random, it: Checkpoint) -> None:
    name = "generation_config.json"
    if rng.random() < 0.4:
        damage_text(rng, it, name)
        return
    value = rng.choice([
        None, -1, 0, 287, 288, 2**70, 1.0, "256", [], [256, 257], [256, None], [[256]], {}, True,
        [1] * 3000, "x" * 3000, [False], [2**64],
    ])  # fmt: skip
    more = {"do_sample": rng.choice([True, 1, None]), "suppress_tokens": rng.choice([None, [1]])}
    it.put_json(name, {"eos_token_id": value} | (more if rng.random() < 0.3 else {}))


def truncate(rng: Random, it: Checkpoint) -> None:
    file = rng.choice(it.weights())
    content = it.files[file]
    header = 8 + struct.unpack("<Q", content[:8])[0]
    cut = rng.choice([rng.randrange(len(content)), rng.randrange(header), len(content) - 1, 8])
    it.files[file] = content[:cut]


def _zeroed(rng: Random, content: bytes, begin: int, end: int) -> bytes:
    start = rng.randrange(begin, end)
    stop = min(end, start + rng.choice([1, 8, 64, 1000, end]))
    return content[:start] + b"\0" * (stop - start) + content[stop:]


def zero_header(rng: Random, it: Checkpoint) -> None:
    file = rng.choice(it.weights())
    content = it.files[file]
    it.files[file] = _zeroed(rng, content, 0, 8 + struct.unpack("<Q", content[:8])[0])


def zero_numbers(rng: Random, it: Checkpoint) -> None:
    file = rng.choice(it.weights())
    content = it.files[file]
    header = 8 + struct.unpack("<Q", content[:8])[0]
    it.files[file] = _zeroed(rng, content, header, len(content))


def misstate_header(rng: Random, it: Checkpoint) -> None:
    """The header's length."""
    file = rng.choice(it.weights())
    content = it.files[file]
    length = struct.unpack("<Q", content[:8])[0]
    random = rng.randrange(2**64)
    other = rng.choice([0, 1, 2, length - 1, length + 1, len(content), 10**8, 2**63, 2**64 - 1,
                        2**32, random, rng.randrange(len(content))])  # fmt: skip
    it.files[file] = struct.pack("<Q", other) + content[8:]


def damage_header(rng: Random, it: Checkpoint) -> None:
    """An entry of the header: dtype, shape or offsets that are none or lie."""
    file = rng.choice(it.weights())
    content = it.files[file]
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    entry = header[rng.choice([name for name in sorted(header) if name != "__metadata__"])]
    change = rng.randrange(4)
    if change == 0:
        entry["dtype"] = rng.choice(["F33", "", None, 7, "x" * 3000, "F64", "I8", "C64", "F4"])
    elif change == 1:
        entry["shape"] = rng.choice(
            [[], [2**63, 2**63], [2**64], [-1], None, [0], [1.5], "4", [2**31] * 2, [1] * 999]
        )
    elif change == 2:
        begin, stop = entry["data_offsets"]
        entry["data_offsets"] = rng.choice(
            [[stop, begin], [begin, stop + 4], [0, 2**63], [begin], None, [-4, 4], [2**64, 0]]
        )
    else:
        header = rng.choice([
            {**header, "": entry}, {**header, "__metadata__": {"format": 7}}, [header],
            {**header, "__metadata__": None}, {}, {**header, "stray": {}}, None,
            {"__metadata__": {"format": "x" * 9999}, **header},
        ])  # fmt: skip
    text = json.dumps(header).encode()
    it.files[file] = struct.pack("<Q", len(text)) + text + content[end:]


def empty_file(rng: Random, it: Checkpoint) -> None:
    it.files[rng.choice(sorted(it.files))] = b""


def damage_index(rng: Random, it: Checkpoint) -> None:
    split(rng, it)
    if rng.random() < 0.2:
        damage_text(rng, it, INDEX)
        return
    index = it.json(INDEX)
    listed = index["weight_map"]
    name = rng.choice(sorted(listed))
    file = listed[name]
    change = rng.randrange(6)
    if change == 0:
        del listed[name]
    elif change == 1:
        listed[rng.choice([f"{name}x", "", "mtp.ghost", "\ud800", "x" * 3000])] = file
    elif change == 2:
        listed[name] = rng.choice([
            "../model.safetensors", "/etc/passwd", "/dev/zero", "..", ".", "", f"./{file}",
            f"../{file}", "\0", "\ud800", "a" * 5000, "config.json", "none.safetensors", None, 4,
            [file], {"a": file}, f"{file}/", f"{file}\n", "~/x.safetensors", "sub/x.safetensors",
        ])  # fmt: skip
    elif change == 3:
        other = rng.choice(sorted(set(listed.values())))
        index["weight_map"] = dict.fromkeys(listed, other)
    elif change == 4:
        index["weight_map"] = rng.choice([None, [], {}, "x", 4, [[name, file]], listed])
        index["metadata"] = rng.choice([None, {}, {"total_size": -1}, {"total_size": "x"}, 7])
    else:
        old = rng.choice(sorted(set(listed.values())))
        it.files[f"{old}.safetensors"] = it.files.pop(old)
    it.put_json(INDEX, index)


def store_both(rng: Random, it: Checkpoint) -> None:
    """One file and an index, which agree or not."""
    if INDEX in it.files:
        tensors = [load(it.files[file]) for file in it.weights()]
        whole = {name: x for part in tensors for name, x in part.items()}
        if rng.random() < 0.5:
            name = rng.choice(sorted(whole))
            whole[name] = whole[name] + 1
        it.files["model.safetensors"] = save(whole)
        return
    names = load(it.files["model.safetensors"])
    file = rng.choice(["model.safetensors", "none.safetensors", "extra.safetensors"])
    it.files["extra.safetensors"] = it.files["model.safetensors"]
    place = dict.fromkeys(names, file)
    if rng.random() < 0.3:
        place[rng.choice(sorted(names))] = "extra.safetensors"
    it.put_json(INDEX, {"metadata": {}, "weight_map": place})


def folder_for_file(rng: Random, it: Checkpoint) -> None:
    name = rng.choice([*sorted(it.files), "stray.safetensors", INDEX, "generation_config.json",
                       "tokenizer_config.json", "tokenizer.json"])  # fmt: skip
    it.files.pop(name, None)
    it.folders.add(name)


def link_for_file(rng: Random, it: Checkpoint) -> None:
    name = rng.choice([*sorted(it.files), "stray.safetensors", INDEX])
    content = it.files.pop(name, b"")
    end = rng.choice(["nowhere", name, "/nowhere/at/all", "beside", "."])
    if end == "beside":
        it.files[end] = content
    it.links[name] = end


KINDS: dict[str, Mutation] = {
    "config.json": damage_config,
    "tokenizer.json": damage_tokenizer,
    "generation_config.json": damage_generation,
    "truncated": truncate,
    "zeros in the header": zero_header,
    "zeros in the numbers": zero_numbers,
    "length of the header": misstate_header,
    "entry of the header": damage_header,
    "empty file": empty_file,
    "index": damage_index,
    "one file and an index": store_both,
    "directory for a file": folder_for_file,
    "link for a file": link_for_file,
}
