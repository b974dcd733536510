# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""docs/correctness.md names tests, files and tolerances that exist."""

import re
from pathlib import Path

from tests import tolerances

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "correctness.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", DOCUMENT))


def test_every_test_that_is_named_exists():
    named = [quoted.split("::") for quoted in QUOTED if "::" in quoted]
    assert len(named) > 25
    for file, name in named:
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", source, re.MULTILINE), (file, name)


def test_every_row_of_a_proof_ends_in_a_test():
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and "::" in line]
    tables = DOCUMENT.split("## How it is proven")[1].split("## To repeat it")[0]
    heads = ("| promise", "| report")
    lines = [line for line in tables.splitlines() if line.startswith("| ")]
    assert len(rows) == sum(not line.startswith(heads) for line in lines)


def test_every_file_and_tolerance_that_is_named_exists():
    for quoted in QUOTED:
        if re.fullmatch(r"(tests|benchmarks|docs|src)/[\w/.]+", quoted):
            assert (ROOT / quoted).exists(), quoted
        if re.fullmatch(r"[A-Z]{2,}[A-Z_]*", quoted):
            assert hasattr(tolerances, quoted), quoted
    for target in re.findall(r"\]\(([^)#]+)\)", DOCUMENT):
        assert (ROOT / "docs" / target).exists(), target
