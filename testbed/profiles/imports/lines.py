"""Lines of other people's CSV files: numbers out of cells, and what is wrong by file and line."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.errors import Problem, ScenarioError

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
        value = self._number(column)
        if value is None or value != int(value) or not least <= value <= MAX_TOKENS:
            self.refuse(column, f"a whole number from {least} on")
            return least
        return int(value)

    def positive(self, column: str) -> float:
        """A number above 0."""
        value = self._number(column)
        if value is None or value <= 0:
            self.refuse(column, "a number above 0")
            return 1.0
        return value

    def truth(self, column: str) -> bool:
        """True or False."""
        text = self.text(column).lower()
        if text not in ("true", "false"):
            self.refuse(column, "True or False")
        return text == "true"

    def refuse(self, column: str, allowed: str) -> None:
        """Note that the cell is wrong."""
        self._problems.append(Problem(f"{self.where}: {column}", repr(self.text(column)), allowed))

    def _number(self, column: str) -> float | None:
        try:
            value = float(self.text(column))
        except ValueError:
            return None
        return value if math.isfinite(value) else None


class Sheet:
    """A CSV file with a header; blank lines and those that begin with # do not count.

    Raises:
        ScenarioError: it cannot be read, is no text, has no header, or a line has other columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.lines: list[Line] = []
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file)
                self.header = [name.strip() for name in next(reader, [])]
                for cells in reader:
                    self._add(f"{path}:{reader.line_num}", [cell.strip() for cell in cells])
        except OSError as error:
            raise ScenarioError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise ScenarioError(Problem(str(path), f"not a CSV file: {error}")) from None
        if not any(self.header):
            raise ScenarioError(Problem(str(path), "is empty", "a header and lines below it"))

    def _add(self, where: str, cells: Sequence[str]) -> None:
        if not any(cells) or cells[0].startswith("#"):
            return
        if len(cells) != len(self.header):
            problem = Problem(where, f"{len(cells)} cells", f"{len(self.header)}, as the header has")
            self.problems.append(problem)
            return
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
