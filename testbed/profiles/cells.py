"""What comes out of other people's files: their content within bounds, numbers, and text for a terminal."""

from __future__ import annotations

import math
import os
import re
import stat
from pathlib import Path
from typing import Final

from testbed.errors import Problem, ScenarioError

MAX_FILE_BYTES: Final = 64 * 2**20
MAX_ROWS: Final = 100_000
LEAST_S: Final = 1e-9
LONGEST_S: Final = 86_400.0
SECONDS_ALLOWED: Final = f"a number of seconds from {LEAST_S:g} to {LONGEST_S:g}"
MOST_SHOWN: Final = 200
"""Characters of a text that somebody else wrote."""

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)


def content(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """All of a regular file.

    Raises:
        OSError: it cannot be read.
        ScenarioError: it is no regular file, such as a pipe, which may never end, or it is too large.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ScenarioError(Problem(str(path), "is not a regular file", "a file"))
    flags = os.O_RDONLY | os.O_NONBLOCK  # a pipe may have taken its place meanwhile
    with os.fdopen(os.open(path, flags), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ScenarioError(Problem(str(path), f"is larger than {most_bytes >> 20} MiB", "a profile"))
    return data


def decimal(cell: str) -> float | None:
    """A number as everybody writes it; None for anything else, such as nan, 1e999, 0x40, 1_000 or 1,5."""
    value = float(cell) if _NUMBER.fullmatch(cell) else math.inf
    return value if math.isfinite(value) else None


def printable(text: str, most: int = MOST_SHOWN) -> str:
    """The text in one line, cut; what does not print is escaped, so that it cannot control a terminal."""
    cut = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode("ascii")
        for one in cut
    )
