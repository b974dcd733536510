# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
import pytest

from hybridspec.cli import main


@pytest.fixture
def refused(capsys):
    """Asserts that the command refuses its arguments in one sentence that names what it should."""

    def check(arguments, *named):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("hybridspec: ")
        assert err.count("\n") == 1
        assert len(err) < 400
        for words in named:
            assert words in err

    return check
