"""Files that the link follows: traces of its values, mahimahi traces, measured delays.

All are text, read strictly: every wrong line is a problem with its file and line. scenarios/links/README.md
describes the formats for people.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from testbed.errors import Problem, ScenarioError
from testbed.resolve.findings import Findings
from testbed.scenario.quantities import FINEST_STEP_NS, TOO_FINE, parse_probability
from testbed.scenario.source import KeyPath
from testbed.units import (
    DURATION_ALLOWED,
    RATE_ALLOWED,
    UnitError,
    format_duration_ns,
    parse_duration_ns,
    parse_rate_bps,
    shown,
)

Result = TypeVar("Result")
MAX_FILE_BYTES: Final = 64 * 2**20
MAX_ROWS: Final = 100_000
"""Of a CSV file: as many changes as an entry may make, and 24 delays for each entry of netem's table."""
MAX_OPPORTUNITIES: Final = 1_000_000
MAX_PROBLEMS: Final = 10
"""More than this and the file is something else."""
NS_PER_MS: Final = 1_000_000
FLOOR: Final = 0.01
"""Least rate of a mahimahi trace, as a share of its mean. A packet that begins at the rate of a bin without
any opportunity would otherwise block the link for far longer than the bin."""


@dataclass(frozen=True)
class LinkTrace:
    """Values from `times_ns` on, relative to the trace's begin; `length_ns` is that of one round of it."""

    times_ns: tuple[int, ...]
    rows: tuple[dict[str, Any], ...]
    """Per time: the new values by column; all have the same columns."""
    length_ns: int


class _Lines:
    """Up to `most` lines of a text file that say something, with their numbers; `#` begins a comment.

    `quotes`: messages may show the file's text, which is not for a file outside the scenario's directory.
    """

    def __init__(self, path: Path, *, quotes: bool, most: int) -> None:
        self.path, self.quotes, self._most = path, quotes, most
        self.problems: list[Problem] = []

    def __iter__(self) -> Iterator[tuple[int, str]]:
        with self.path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ScenarioError(
                Problem(str(self.path), f"is larger than {MAX_FILE_BYTES >> 20} MiB", "a shorter trace")
            )
        try:
            lines = text.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            line = text.count(b"\n", 0, error.start) + 1
            found = f"byte 0x{text[error.start]:02x} is not UTF-8"
            raise ScenarioError(Problem(f"{self.path}:{line}", found, "a text file in UTF-8")) from None
        numbered = ((number, line.strip()) for number, line in enumerate(lines, start=1))
        said = [(number, line) for number, line in numbered if line and not line.startswith("#")]
        if len(said) > self._most + 1:
            found = f"{len(said)} lines that are not comments"
            raise ScenarioError(Problem(str(self.path), found, f"at most {self._most}", "a part of the file"))
        yield from said

    def refuse(self, line: int, found: str, allowed: str, column: str = "") -> None:
        """Note a problem; gives up when there are many."""
        where = f"{self.path}:{line}: {column}" if column else f"{self.path}:{line}"
        self.problems.append(Problem(where, found, allowed))
        if len(self.problems) >= MAX_PROBLEMS:
            raise ScenarioError(*self.problems)

    def raise_if_any(self) -> None:
        if self.problems:
            raise ScenarioError(*self.problems)


def _positive(parse: Callable[[object], int], allowed: str) -> Callable[[str], int]:
    def parse_positive(text: str) -> int:
        amount = parse(text)
        if amount == 0:
            raise UnitError(f"{text} is zero", allowed)
        return amount

    return parse_positive


TRACE_COLUMNS: Final[dict[str, Callable[[str], Any]]] = {
    "t": parse_duration_ns,
    "rate": lru_cache(_positive(parse_rate_bps, RATE_ALLOWED)),
    "delay": lru_cache(parse_duration_ns),
    "jitter": lru_cache(parse_duration_ns),
    "loss": lru_cache(parse_probability),
}
DELAY_COLUMNS: Final[dict[str, Callable[[str], Any]]] = {
    "delay": lru_cache(_positive(parse_duration_ns, DURATION_ALLOWED))
}


def read_trace(path: Path, key: KeyPath, findings: Findings) -> LinkTrace | None:
    """A trace of the link's values (CSV); None, and problems in `findings`, when it is none."""
    return _reading(_trace, path, key, findings, MAX_ROWS)


def read_mahimahi(path: Path, key: KeyPath, findings: Findings) -> tuple[int, ...] | None:
    """The moments (ms) of a mahimahi trace at which 1500 bytes may leave; the last is the trace's length."""
    return _reading(_opportunities, path, key, findings, MAX_OPPORTUNITIES)


def read_delays(path: Path, key: KeyPath, findings: Findings) -> tuple[int, ...] | None:
    """Measured delays (CSV with the column `delay`), in ns."""
    return _reading(_delays, path, key, findings, MAX_ROWS)


def outline(path: Path) -> tuple[tuple[str, ...], int]:
    """The columns of a trace that can be read, and the time (ns) of its last row."""
    said = [line for _, line in _Lines(path, quotes=False, most=MAX_ROWS)]
    header, last = csv.reader((said[0], said[-1]), skipinitialspace=True)
    columns = tuple(cell.strip() for cell in header)
    return columns, parse_duration_ns(last[columns.index("t")])


def _reading(
    read: Callable[[_Lines], Result], path: Path, key: KeyPath, findings: Findings, most: int
) -> Result | None:
    """What `read` makes of up to `most` lines; None, with problems, when there is something else."""
    try:
        if not path.is_file():
            found = f"{path} is not a regular file" if path.exists() else f"there is no file {path}"
            findings.add(key, found, "a path relative to the scenario's own directory")
            return None
        beside = path.resolve().is_relative_to(Path(findings.source.file).parent.resolve())
        lines = _Lines(path, quotes=beside, most=most)
        result = read(lines)
        lines.raise_if_any()
    except ScenarioError as error:
        findings.add_error(key, error)
        return None
    except OSError as error:
        findings.add(key, f"{path} cannot be read: {error.strerror}")
        return None
    return result


def _csv(lines: _Lines, columns: dict[str, Callable[[str], Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as values by column, with their line; wrong cells are noted and their row left out."""
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in lines:
            numbers.append(number)
            yield line

    rows = csv.reader(texts(), skipinitialspace=True)
    try:
        header = [cell.strip() for cell in next(rows, [])]
        _check_header(lines, max(numbers, default=1), header, columns)
        for cells in rows:
            if len(cells) != len(header):
                lines.refuse(numbers[-1], f"{len(cells)} values", f"{len(header)}: {', '.join(header)}")
                continue
            values = _values(lines, numbers[-1], dict(zip(header, cells, strict=True)), columns)
            if len(values) == len(header):
                yield numbers[-1], values
    except csv.Error as error:
        where = f"{lines.path}:{max(numbers, default=1)}"
        raise ScenarioError(Problem(where, f"is no CSV: {error}", "a row a line, with short cells")) from None
    if len(numbers) <= 1:
        lines.refuse(max(numbers, default=1), "no rows", "a header, then rows")


def _values(
    lines: _Lines, line: int, cells: dict[str, str], columns: dict[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """What the cells say; those that say nothing are noted and left out."""
    values: dict[str, Any] = {}
    for name, cell in cells.items():
        try:
            values[name] = columns[name](cell.strip())
        except UnitError as error:
            lines.refuse(line, error.found if lines.quotes else f"no {name}", error.allowed, name)
    return values


def _check_header(lines: _Lines, line: int, header: list[str], columns: dict[str, Any]) -> None:
    first = next(iter(columns))
    wrong = [name for name in header if name not in columns or header.count(name) > 1]
    if wrong or first not in header or (len(columns) > 1 and len(header) == 1):
        found = f"the header {shown(','.join(header))}" if lines.quotes else "another header"
        found = found if header else "no header, as the file has no lines"
        allowed = f"{first} and any of {', '.join(list(columns)[1:])}" if len(columns) > 1 else first
        each = ", each once" if len(columns) > 1 else ""
        raise ScenarioError(Problem(f"{lines.path}:{line}", found, f"a header with {allowed}{each}"))


def _delays(lines: _Lines) -> tuple[int, ...]:
    return tuple(values["delay"] for _, values in _csv(lines, DELAY_COLUMNS))


def _trace(lines: _Lines) -> LinkTrace:
    times_ns: list[int] = []
    rows: list[dict[str, Any]] = []
    for line, values in _csv(lines, TRACE_COLUMNS):
        t_ns = values.pop("t")
        if times_ns and t_ns <= times_ns[-1]:
            lines.refuse(line, "not after the row before it", "times in rising order", "t")
        elif times_ns and t_ns - times_ns[-1] < FINEST_STEP_NS:
            found = f"{format_duration_ns(t_ns - times_ns[-1])} after the row before {TOO_FINE}"
            lines.refuse(line, found, "rows 1ms apart or more", "t")
        times_ns.append(t_ns)
        rows.append(values)
    last_ns = times_ns[-1] - times_ns[-2] if len(times_ns) > 1 else 0
    return LinkTrace(tuple(times_ns), tuple(rows), times_ns[-1] + last_ns if times_ns else 0)


def _opportunities(lines: _Lines) -> tuple[int, ...]:
    moments_ms: list[int] = []
    for line, text in lines:
        if not text.isascii() or not text.isdecimal() or len(text) > 12:  # noqa: PLR2004 - 30 years
            found = f"{shown(text)} is no time" if lines.quotes else "no time"
            lines.refuse(line, found, "a whole number of milliseconds, one a line")
        elif moments_ms and int(text) < moments_ms[-1]:
            lines.refuse(line, "before the line above it", "times in rising order")
        else:
            moments_ms.append(int(text))
    if not moments_ms or moments_ms[-1] == 0:
        lines.refuse(1, "no time above 0", "times of delivery in milliseconds; the last is the length")
    return tuple(moments_ms)


def binned(moments_ms: tuple[int, ...], bin_ns: int, mean_bps: int) -> LinkTrace:
    """The rate of a mahimahi trace in bins, with the given mean; the last bin may be shorter.

    rate = mean * (FLOOR + (1 - FLOOR) * opportunities in the bin / opportunities in a mean bin), so the mean
    is exact and no bin is below FLOOR of it. An opportunity at the very end belongs to the last bin.
    """
    length_ns = moments_ms[-1] * NS_PER_MS
    count = -(-length_ns // bin_ns)
    at = np.minimum(np.array(moments_ms, dtype=np.int64) * NS_PER_MS // bin_ns, count - 1)
    share = np.bincount(at, minlength=count) / len(moments_ms)
    starts = np.arange(count, dtype=np.int64) * bin_ns
    lengths = np.minimum(starts + bin_ns, length_ns) - starts
    rates = np.rint(mean_bps * (FLOOR + (1 - FLOOR) * share * length_ns / lengths)).astype(np.int64)
    kept = np.concatenate(([True], rates[1:] != rates[:-1]))
    return LinkTrace(
        tuple(starts[kept].tolist()), tuple({"rate": rate} for rate in rates[kept].tolist()), length_ns
    )
