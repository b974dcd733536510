# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest


@pytest.fixture(autouse=True)
def in_inference(inference):
    """Everything here runs without autograd, as the engine does."""
