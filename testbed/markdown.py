"""Tables in Markdown, in which every text shows as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "`": "\\`", "*": "\\*", "_": "\\_", "[": "\\["}
    | {"\\": "\\\\", "]": "\\]"}
)


def escaped(text: str) -> str:
    """`text` as one line that Markdown and HTML show as it is, in a table's cell too."""
    return "<br>".join(line.strip().translate(_ESCAPES) for line in text.splitlines() if line.strip())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; whatever stands in a cell stays in it."""
    lines = [head, ["---"] * len(head), *([escaped(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
