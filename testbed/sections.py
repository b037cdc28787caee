"""Sections of Markdown pages that commands write.

One is what stands between the lines `<!-- NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from stat import S_IMODE

from testbed.errors import Problem, ScenarioError


def require(page: Path, section: str, example: str) -> None:
    """Before minutes of runs: ScenarioError unless `page` has a place for `section`, as `example` has."""
    if _marks(section).search(_text(page, example)) is None:
        found = f"has no lines <!-- {section} --> and <!-- end of {section} -->"
        raise ScenarioError(Problem(f"--write {page}", found, example))


def write(page: Path, section: str, text: str, example: str) -> None:
    """Put `text` between the marks of `section`, and leave everything else as it is.

    The file gets its text at once, so that nobody ever reads half of it, and stays the file that it was:
    its mode, the link that leads to it.
    """
    whole = _marks(section).sub(lambda mark: f"{mark[1]}{text}\n{mark[2]}", _text(page, example))
    path = page.resolve()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(whole, encoding="utf-8")
        fresh.chmod(S_IMODE(path.stat().st_mode))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Its lines; cells are Markdown, but a bar would end one, so it is escaped."""
    rule = ["---"] * len(header)
    return [_line(cells) for cells in (header, rule, *rows)]


def _line(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _marks(section: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {section} -->\n).*?(<!-- end of {section} -->)", re.DOTALL)


def _text(page: Path, example: str) -> str:
    """ScenarioError when the file has none."""
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        found = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        found = f"is not UTF-8: {error.reason} at byte {error.start}"
    raise ScenarioError(Problem(f"--write {page}", found, f"a text file, such as {example}"))
