"""Lines of other people's CSV files: numbers out of cells, and what is wrong by file and line."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.errors import Problem, ScenarioError
from testbed.profiles.cells import (
    LEAST_S,
    LONGEST_S,
    MAX_ROWS,
    SECONDS_ALLOWED,
    content,
    decimal,
    printable,
)

MAX_PROBLEMS: Final = 10
MAX_TOKENS: Final = 10**9


class Line:
    """One line. What is malformed goes to `problems`; what is returned then has no meaning."""

    def __init__(self, where: str, cells: dict[str, str], problems: list[Problem]) -> None:
        self.where, self._cells, self._problems = where, cells, problems

    def text(self, column: str) -> str:
        """What the cell says; empty where there is no such column."""
        return self._cells.get(column, "")

    def integer(self, column: str, least: int = 1) -> int:
        """A whole number from `least` on; 3.0 is one."""
        value = decimal(self.text(column))
        if value is None or value != int(value) or not least <= value <= MAX_TOKENS:
            self.refuse(column, f"a whole number from {least} to {MAX_TOKENS}")
            return least
        return int(value)

    def seconds(self, column: str, per_s: float = 1.0) -> float:
        """A time that somebody may have measured, in seconds; in the cell a second is `per_s`."""
        value = decimal(self.text(column))
        if value is None or not LEAST_S <= value / per_s <= LONGEST_S:
            unit = "" if per_s == 1 else f", here times {per_s:g}"
            self.refuse(column, f"{SECONDS_ALLOWED}{unit}")
            return 1.0
        return value / per_s

    def truth(self, column: str) -> bool:
        """True or False."""
        text = self.text(column).lower()
        if text not in ("true", "false"):
            self.refuse(column, "True or False")
        return text == "true"

    def refuse(self, column: str, allowed: str) -> None:
        """Note that the cell is wrong."""
        self._problems.append(
            Problem(f"{self.where}: {column}", f"'{printable(self.text(column))}'", allowed)
        )


class Sheet:
    """A CSV file with a header; blank lines and those that begin with # do not count.

    Raises:
        ScenarioError: it cannot be read, is no text, has no header or a column twice, or too many lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.lines: list[Line] = []
        try:
            reader = csv.reader(io.StringIO(content(path).decode("utf-8-sig"), newline=""))
            self.header = [name.strip() for name in next(reader, [])]
            self._check_header()
            for cells in reader:
                self._add(f"{path}:{reader.line_num}", [cell.strip() for cell in cells])
        except OSError as error:
            raise ScenarioError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise ScenarioError(Problem(str(path), f"not a CSV file: {error}")) from None

    def _check_header(self) -> None:
        if not any(self.header):
            raise ScenarioError(Problem(str(self.path), "is empty", "a header and lines below it"))
        counts = Counter(name for name in self.header if name)
        if twice := [name for name, count in counts.items() if count > 1]:
            found = printable(f"more than one column {', '.join(twice)}")
            raise ScenarioError(Problem(f"{self.path}:1", found, "each once"))

    def _add(self, where: str, cells: Sequence[str]) -> None:
        if not any(cells) or cells[0].startswith("#"):
            return
        if len(cells) != len(self.header):
            problem = Problem(where, f"{len(cells)} cells", f"{len(self.header)}, as the header has")
            self.problems.append(problem)
            return
        if len(self.lines) == MAX_ROWS:
            raise ScenarioError(Problem(where, "one line too many", f"at most {MAX_ROWS} with numbers"))
        self.lines.append(Line(where, dict(zip(self.header, cells, strict=True)), self.problems))

    def require(self, *columns: str) -> None:
        """ScenarioError unless the header has them all."""
        if missing := [column for column in columns if column not in self.header]:
            found = f"no column {', '.join(missing)}"
            raise ScenarioError(Problem(f"{self.path}:1", found, ", ".join(columns)))

    def finish(self) -> None:
        """ScenarioError with the first problems, if there is one."""
        if self.problems:
            raise ScenarioError(*self.problems[:MAX_PROBLEMS])
