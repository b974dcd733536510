# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import subprocess
import sys

import pytest

import hybridspec


def test_every_public_name_is_found():
    for name in hybridspec.__all__:
        assert getattr(hybridspec, name) is not None
    assert set(dir(hybridspec)) == set(hybridspec.__all__)


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="'Llm'"):
        _ = hybridspec.Llm


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, hybridspec; hybridspec.SamplingParams(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
