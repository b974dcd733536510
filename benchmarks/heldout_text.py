# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Prompts in four classes from packages that the embedded pair was not trained on.

The packages are those that recipes/data/packages.json holds out and that are installed here. The
training text itself is not here, so that files which share lines with it cannot be left out, as
recipes/corpus.py does. Everything is a function of the installed files.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from hybridspec.engine.tokenizer import Tokenizer

CLASSES = ("library", "tests", "docs", "data")
PACKAGES = Path(__file__).parents[1] / "recipes" / "data" / "packages.json"
LEAST, MOST = 64, 256
"""tokens of a prompt"""
PER_FILE = 2


def prompts(tokenizer: Tokenizer, count: int) -> list[tuple[str, str]]:
    """(class, prompt), `count` of each class, ordered by a hash of the file's path."""
    found: dict[str, list[str]] = {name: [] for name in CLASSES}
    for path, text in sources():
        for name, cut in cuts(path, text):
            if len(found[name]) < count and (prompt := ending(tokenizer, text, cut)):
                found[name].append(prompt)
        if all(len(own) == count for own in found.values()):
            break
    return [(name, prompt) for name, own in found.items() for prompt in own]


def sources() -> Iterator[tuple[str, str]]:
    """Path and text of every held-out source file that is installed."""
    rows = json.loads(PACKAGES.read_text(encoding="utf-8"))["packages"]
    found: list[tuple[str, Path]] = []
    for row in rows:
        if row["split"] != "heldout":
            continue
        try:
            listed = files(row["name"]) or []
        except PackageNotFoundError:
            continue
        found += [(str(file), Path(str(file.locate()))) for file in listed if file.suffix == ".py"]
    for path, file in sorted(found, key=lambda own: hashlib.sha256(own[0].encode()).digest()):
        if 2000 < file.stat().st_size < 512 * 1024:
            yield path, file.read_text(encoding="utf-8")


def cuts(path: str, text: str) -> list[tuple[str, int]]:
    """(class, lines before the cut), at most PER_FILE of a class.

    A docstring of 6 lines or more is cut behind its second line, a display of 8 lines or more
    behind its third; any other file in the middle of its longest function.
    """
    tree = ast.parse(text)
    is_test = re.search(r"(^|/)tests?/|(^|/)test_|conftest", path) is not None
    docs, data, code = [], [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str) and node.end_lineno - node.lineno >= 5:
                docs.append(("docs", node.lineno + 1))
        elif isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Set):
            if node.end_lineno - node.lineno >= 7:
                data.append(("data", node.lineno + 2))
        elif isinstance(node, ast.FunctionDef) and len(node.body) > 1:
            size = node.end_lineno - node.body[1].lineno
            if size >= 8:
                code.append((size, "tests" if is_test else "library", node.body[1].lineno + 2))
    code = [(name, line) for _, name, line in sorted(code, reverse=True)]
    return docs[:PER_FILE] + data[:PER_FILE] + code[:PER_FILE]


def ending(tokenizer: Tokenizer, text: str, cut: int) -> str | None:
    """The lines before the cut, as many of the last as MOST tokens hold; None below LEAST."""
    lines = text.splitlines(keepends=True)[:cut]
    prompt, tokens = "", 0
    for line in reversed(lines):
        longer = line + prompt
        count = len(tokenizer.encode(longer))
        if count > MOST:
            break
        prompt, tokens = longer, count
    return prompt if tokens >= LEAST else None
