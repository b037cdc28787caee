"""Whether two runs of one plan say the same, and where they first do not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from testbed.record import TABLES

TIMES = ("t_s", "left_s", "arrival_s", "start_s")
"""The column that says when a row happened: whichever of these a table has."""
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Difference:
    """The first row of a table in which two records differ; `column` is empty where only one has it."""

    table: str
    row: int
    t_s: float | None
    """Virtual seconds since t0 of the row, in the first record that has one."""
    column: str
    values: tuple[object, object]

    def __str__(self) -> str:
        when = "" if self.t_s is None else f" at {self.t_s:.9f} virtual s"
        place = f"table {self.table}, row {self.row}{when}"
        if not self.column:
            return f"{place}: only one of the runs has this row"
        first, second = self.values
        return f"{place}: {self.column} is {first!r} in the first run, {second!r} in the second"


def first_difference(
    first: Mapping[str, pl.DataFrame], second: Mapping[str, pl.DataFrame]
) -> Difference | None:
    """The difference that happened first in virtual time; None when all tables are equal, row for row."""
    found = [one for name in TABLES if (one := _in_table(name, first[name], second[name]))]
    return min(found, key=lambda one: math.inf if one.t_s is None else one.t_s, default=None)


def differing_files(first: Path, second: Path, pattern: str) -> Iterator[str]:
    """Files of two run directories that fit `pattern` and are not the same, byte for byte."""
    names = {path.relative_to(place) for place in (first, second) for path in place.glob(pattern)}
    for name in sorted(names):
        one, two = first / name, second / name
        if not (one.is_file() and two.is_file()):
            yield f"{name}: only one of the runs has it"
        else:
            at = _first_byte(one, two)
            if at is not None:
                yield f"{name}: differs from byte {at} on"


def _in_table(name: str, first: pl.DataFrame, second: pl.DataFrame) -> Difference | None:
    common = min(first.height, second.height)
    rows = {
        column: row
        for column in first.columns
        if (row := _first_row(first[column].head(common), second[column].head(common))) is not None
    }
    if rows:
        column, row = min(rows.items(), key=lambda item: item[1])
        return Difference(name, row, _time(first, row), column, (first[column][row], second[column][row]))
    if first.height != second.height:
        longer = first if first.height > second.height else second
        return Difference(name, common, _time(longer, common), "", (None, None))
    return None


def _first_row(first: pl.Series, second: pl.Series) -> int | None:
    differs = first.ne_missing(second)
    return differs.arg_max() if differs.any() else None


def _time(table: pl.DataFrame, row: int) -> float | None:
    column = next(name for name in TIMES if name in table.columns)
    t_s = table[column][row]
    return None if t_s is None else float(t_s)


def _first_byte(one: Path, two: Path) -> int | None:
    with one.open("rb") as first, two.open("rb") as second:
        for start in range(0, max(one.stat().st_size, two.stat().st_size) + 1, BLOCK_BYTES):
            left, right = first.read(BLOCK_BYTES), second.read(BLOCK_BYTES)
            if left != right:
                pairs = zip(left, right, strict=False)
                shorter = min(len(left), len(right))
                return start + next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
    return None
