# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""One kind of damage a function: each changes a valid checkpoint in memory, by a seeded generator.

A mutation need not be damage in the end: zeroed weights are weights, and a field may be optional.
What it must be is told by the judge (`tests/models/test_fuzz.py`), not by the kind.
"""

from random import Random

from tests.mutations import of_fields, of_files, of_tensors
from tests.mutations.checkpoint import Checkpoint

KINDS = of_tensors.KINDS | of_fields.KINDS | of_files.KINDS


def mutate(kind: str, seed: int, sound: Checkpoint) -> Checkpoint:
    """A copy of a sound checkpoint with one mutation of a kind."""
    found = sound.copy()
    KINDS[kind](Random(f"{kind} {seed}"), found)
    return found
