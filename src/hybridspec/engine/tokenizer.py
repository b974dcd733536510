# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Text to ids and back. A stream flushes whole UTF-8 only."""

import logging
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from hybridspec.core.errors import CheckpointError, shortened
from hybridspec.core.jsonfile import is_there
from hybridspec.models.config_fields import read_json, token_ids

log = logging.getLogger("hybridspec")


class Tokenizer:
    """`tokenizer.json` of a checkpoint, and the ids that end its texts."""

    def __init__(self, directory: Path, *, vocab_size: int, eos_in_config: tuple[int, ...]) -> None:
        """Raises CheckpointError if the file is missing, damaged, or of another vocabulary."""
        self._backend = open_backend(directory)
        largest = max(self._backend.get_vocab().values(), default=0)
        if largest >= vocab_size:
            raise CheckpointError(
                f"{directory}: the tokenizer has id {largest}, "
                f"the model a vocabulary of {vocab_size}."
            )
        self.stop_ids = _stop_ids(directory, self._backend, eos_in_config)
        for stop_id in self.stop_ids:
            if stop_id >= vocab_size:
                raise CheckpointError(
                    f"{directory}: stop id {stop_id} lies outside the vocabulary of {vocab_size}."
                )

    def encode(self, text: str) -> list[int]:
        """Ids of a text; nothing is added."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text of ids, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        return self._backend.decode(ids, skip_special_tokens=True)

    def stream(self) -> "TextStream":
        """A decoder for ids that come bit by bit."""
        return TextStream(self._backend)


class TextStream:
    """Text of a growing list of ids; the pieces joined are the text of the whole list."""

    def __init__(self, backend: Backend) -> None:
        """One stream of one text."""
        self._backend = backend
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._sent = 0

    def push(self, ids: tuple[int, ...]) -> str:
        """What can be shown after these ids: characters that are complete."""
        self._ids.extend(ids)
        text = "".join(self._decoder.step(self._backend, i) or "" for i in ids)
        self._sent += len(text)
        return text

    def finish(self) -> str:
        """What is left at the end, an unfinished character as U+FFFD."""
        return self._backend.decode(self._ids, skip_special_tokens=True)[self._sent :]


def open_backend(directory: Path) -> Backend:
    """The tokenizer in a directory; raises CheckpointError."""
    path = directory / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(f"{path} does not exist; a checkpoint needs its tokenizer.")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every kind of damage
        raise CheckpointError(
            f"{path} is not a readable tokenizer: {shortened(str(error))}."
        ) from None
    backend.no_truncation()  # either would change a prompt without a word
    backend.no_padding()
    return backend


def first_difference(ours: Backend, theirs: Backend) -> str | None:
    """The first token, by id, that two tokenizers do not share; None if they agree."""
    mine = {i: token for token, i in ours.get_vocab().items()}
    other = {i: token for token, i in theirs.get_vocab().items()}
    for i in sorted(mine.keys() | other.keys()):
        if mine.get(i) != other.get(i):
            return f"id {i} is {mine.get(i)!r} in one and {other.get(i)!r} in the other"
    return None


def _stop_ids(directory: Path, backend: Backend, eos_in_config: tuple[int, ...]) -> tuple[int, ...]:
    """From generation_config.json, else from the tokenizer, else from config.json."""
    generation = directory / "generation_config.json"
    if is_there(generation):
        fields = read_json(generation)
        ids = token_ids(fields.get("eos_token_id"), generation)
        _announce(fields, generation.name)
        if ids:
            return ids
    return _tokenizer_eos(directory, backend) or eos_in_config


def _announce(fields: dict[str, Any], name: str) -> None:
    """Say what a generation_config asks for and does not get."""
    if fields.get("do_sample"):
        log.warning(
            "%s asks for sampling; this version decodes greedily, as at temperature 0.", name
        )
    asked = [key for key, neutral in _PROCESSING.items() if fields.get(key, neutral) != neutral]
    asked = [key for key in asked if fields[key] is not None]
    if asked:
        log.warning("%s asks for %s; this version leaves logits alone.", name, ", ".join(asked))


_PROCESSING: dict[str, object] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
}
"""what changes greedy decoding, with the value that changes nothing"""


def _tokenizer_eos(directory: Path, backend: Backend) -> tuple[int, ...]:
    path = directory / "tokenizer_config.json"
    if not is_there(path):
        return ()
    eos: Any = read_json(path).get("eos_token")
    token: Any = eos.get("content") if isinstance(eos, dict) else eos  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    found = backend.token_to_id(token) if isinstance(token, str) else None
    return () if found is None else (found,)
