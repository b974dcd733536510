# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The HybridSpec authors
"""Which installed packages may be trained on: permissive licences only, read from their metadata.

A package whose licence is unknown, copyleft or proprietary is left out; nothing is guessed from its
name.
"""

import csv
import hashlib
import re
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

# fmt: off
PERMISSIVE = frozenset((
    "0bsd", "apache-2.0", "apache2.0", "apache", "bsd",
    "bsd-2-clause", "bsd-3-clause", "bsd3", "bsl-1.0", "cc0-1.0",
    "cnri-python", "hpnd", "isc", "mit", "mit-0",
    "mit-cmu", "psf-2.0", "python-2.0", "unlicense", "zlib",
))
# fmt: on
"""SPDX identifiers and the short names that older metadata uses for them, in lower case."""

CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
}

SHORT_NAMES = {
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "bsd license": "BSD",
    "new bsd": "BSD",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause",
    "mit license": "MIT",
    "the mit license": "MIT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One installed distribution and the Python files that its RECORD lists."""

    name: str
    version: str
    licence: str
    """As found in the metadata; empty when unknown."""
    permitted: bool
    files: tuple[str, ...]
    """Relative to site-packages, sorted; no vendored copies, whose licences are others'."""


def normalised(name: str) -> str:
    """The package name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_heldout(name: str, modulus: int, residue: int) -> bool:
    """Whether a package belongs to the held-out split: sha256 of its normalised name, modulo."""
    digest = hashlib.sha256(normalised(name).encode()).hexdigest()
    return int(digest, 16) % modulus == residue


def is_permissive(expression: str) -> bool:
    """Whether every AND part of an SPDX expression has at least one permissive OR alternative."""
    if not expression:
        return False
    plain = re.sub(r"\s+with\s+llvm-exception", "", expression.strip().lower())
    parts = re.split(r"\s+and\s+", plain.replace("(", " ").replace(")", " ").strip())
    return all(
        any(choice.strip() in PERMISSIVE for choice in re.split(r"\s+or\s+", part))
        for part in parts
    )


def licence_of(metadata: Message) -> str:
    """License-Expression, else the classifiers joined by AND, else a short License field."""
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression).strip()
    marks = [
        value.rsplit("::", 1)[1].strip()
        for value in metadata.get_all("Classifier", [])
        if value.startswith("License ::") and not value.endswith("OSI Approved")
    ]
    if marks:
        return " AND ".join(CLASSIFIERS.get(mark, mark) for mark in marks)
    text = str(metadata.get("License") or "").strip()
    if len(text) > 60 or "\n" in text:
        return ""
    return SHORT_NAMES.get(text.lower(), text)


def read_package(info: Path) -> Package | None:
    """The package behind one .dist-info folder; None when it has no metadata."""
    metadata_file, record = info / "METADATA", info / "RECORD"
    if not metadata_file.is_file() or not record.is_file():
        return None
    metadata = HeaderParser().parsestr(metadata_file.read_text("utf-8", errors="replace"))
    licence = licence_of(metadata)
    with record.open(newline="", encoding="utf-8") as rows:
        files = sorted({row[0] for row in csv.reader(rows) if row and row[0].endswith(".py")})
    return Package(
        name=normalised(str(metadata["Name"])),
        version=str(metadata["Version"]),
        licence=licence,
        permitted=is_permissive(licence),
        files=tuple(f for f in files if not f.startswith(("..", "/")) and "vendor" not in f),
    )


def survey(site: Path) -> list[Package]:
    """Every package installed in a site-packages folder, by name."""
    found = (read_package(info) for info in sorted(site.glob("*.dist-info")))
    return sorted((p for p in found if p is not None), key=lambda p: p.name)
