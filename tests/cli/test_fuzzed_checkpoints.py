# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""A sample of all mutations through the command: text, or one sentence and code 2."""

import pytest

from hybridspec.cli import main
from tests.mutations.checkpoint import DRAFTERS, TARGETS, sound
from tests.mutations.kinds import KINDS, mutate

SAMPLE = {"official": 0, "next in shards": 1, "drafter": 2}
"""a checkpoint for each seed"""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sound")
    return directory, sound(directory)


def flags(name, mutated, target):
    if name in DRAFTERS:
        return ["--model", str(target), "--draft-model", str(mutated), "--policy", "fixed"]
    return ["--model", str(mutated), "--policy", "plain"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_mutation_ends_in_text_or_in_one_sentence(capsys, tmp_path, checkpoints, name, kind):
    directory, valid = checkpoints
    mutated = mutate(kind, SAMPLE[name], valid[name]).write(tmp_path / "mutated")
    arguments = flags(name, mutated, directory / next(iter(TARGETS)))
    code = main(["generate", "a", "--json", "--max-new-tokens", "2", *arguments])
    out, err = capsys.readouterr()
    assert code in (0, 2)
    if code == 2:
        assert out == ""
        assert err.count("\n") == 1
    assert all(line.startswith("hybridspec: ") for line in err.splitlines())
    assert len(err.replace(str(mutated), "")) < 400
