# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest

from tests.decoding import load, load_draft


@pytest.fixture(autouse=True)
def in_inference(inference):
    """Everything here runs without autograd, as the engine does."""


@pytest.fixture(scope="session")
def target(tiny_target):
    """The tiny target in exact mode."""
    return load(tiny_target)


@pytest.fixture(scope="session")
def drafter(tiny_drafter, target):
    return load_draft(tiny_drafter, target)
