"""Digests of what runs: SHA-256, as hexadecimal text."""

from __future__ import annotations

import hashlib
from pathlib import Path

from testbed.kernel.image import PACKAGES


def of_file(path: Path) -> str:
    """Of what a file contains."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_project(root: Path) -> str:
    """Of the project's packages below `root`: names and contents of all files, byte code left out."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(root)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
