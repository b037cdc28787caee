"""Tables in Markdown, in which every text shows as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from testbed.lettering import shown

_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "`": "\\`", "*": "\\*", "_": "\\_", "[": "\\["}
    | {"\\": "\\\\", "]": "\\]", "~": "\\~", "$": "\\$", "#": "\\#<!-- -->", "@": "@<!-- -->"}
)
"""A comment parts what would name somebody, or a change."""
_BEGINS_BLOCK: Final = re.compile(r"^(?:(?=[-+=](?:[-+=\s]|$))|\d+(?=[.)](?:\s|$)))")
"""A list, a rule, or a line below a heading."""


def escaped(text: str) -> str:
    """`text` as one line that Markdown and HTML show as it is, in a table's cell too."""
    lines = [line.strip() for line in shown(text).splitlines()]
    return "<br>".join(_escaped(line) for line in lines if line)


def _escaped(line: str) -> str:
    begins = _BEGINS_BLOCK.match(line)
    if begins is None:
        return line.translate(_ESCAPES)
    return f"{begins[0]}\\{line[begins.end() :].translate(_ESCAPES)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; whatever stands in a cell stays in it."""
    lines = [head, ["---"] * len(head), *([escaped(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
