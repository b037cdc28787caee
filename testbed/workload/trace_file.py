"""Reading files of request traces, JSON lines or CSV: strictly, and with the line of everything wrong."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from testbed.errors import Problem, ScenarioError
from testbed.units import NS_PER_S, UnitError, shown

MAX_PROBLEMS: Final = 10
MAX_LINE_BYTES: Final = 2**20
"""Longer than any row: 131,072 tokens of input have 256 prefix blocks."""
MAX_TOKENS: Final = 10**9
MAX_SECONDS: Final = 10**9
TOKENS_ALLOWED: Final = "a whole number from 0 to 10^9"
SECONDS_ALLOWED: Final = "seconds from 0 to 10^9, such as 12.5"
BOM: Final = b"\xef\xbb\xbf"

_TOKENS: Final = re.compile(r"([0-9]{1,10})(?:\.0*)?", re.ASCII)
_SECONDS: Final = re.compile(r"([0-9]{1,12})(?:\.([0-9]*))?", re.ASCII)
_SCIENTIFIC: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]*)?[eE][+-]?[0-9]{1,2}", re.ASCII)

Line = TypeVar("Line")


class TraceRow(msgspec.Struct, frozen=True, gc=False):
    """One request as recorded, `t_ns` after the begin of its trace."""

    t_ns: int
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    session: str | None = None


class TraceFile:
    """A file of a trace, and what is wrong with it so far.

    `quotes`: messages may show the file's text, which is not for a file outside the directory of traces.
    """

    def __init__(self, path: Path, *, quotes: bool) -> None:
        self.path, self.quotes = path, quotes
        self._problems: list[Problem] = []

    def refuse(self, line: int, found: str, allowed: str, column: str = "") -> None:
        """Note a problem; raises ScenarioError when there are many."""
        where = f"{self.path}:{line}: {column}" if column else f"{self.path}:{line}"
        self._problems.append(Problem(where, found, allowed))
        if len(self._problems) == MAX_PROBLEMS:
            self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raise ScenarioError with all problems so far."""
        if self._problems:
            raise ScenarioError(*self._problems)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """All lines with their numbers, without a byte order mark."""
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                    if len(line) == MAX_LINE_BYTES:
                        found = f"a line of {MAX_LINE_BYTES >> 20} MiB or more"
                        raise ScenarioError(
                            *self._problems, Problem(f"{self.path}:{number}", found, "a row a line")
                        )
                    yield number, line.removeprefix(BOM) if number == 1 else line
        except OSError as error:
            raise ScenarioError(Problem(str(self.path), f"cannot be read: {error.strerror}")) from None

    def objects(self, of: type[Line], allowed: str) -> Iterator[tuple[int, Line]]:
        """The file's JSON lines with their numbers; blank lines do not count, wrong ones are noted."""
        decoder = msgspec.json.Decoder(of)
        none = True
        for number, line in self.lines():
            if not line.strip():
                continue
            none = False
            try:
                decoded = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self.refuse(number, f"not a row of a trace: {error}", allowed)
            else:
                yield number, decoded
        if none:
            allowed = f"one JSON object a line, {allowed}"
            raise ScenarioError(Problem(str(self.path), "the trace is empty", allowed))

    def table(
        self, columns: Mapping[str, Callable[[str], Any]], optional: Mapping[str, Callable[[str], Any]]
    ) -> Iterator[tuple[Any, ...]]:
        """Of each CSV row the values of `columns` and of the `optional` ones (None where there are none).

        The functions make values of cells, or raise UnitError; rows with wrong cells are noted and left out.
        The first line names the columns, in any order; others are ignored.
        """
        records = self._records()
        header = [cell.strip() for cell in next(records, (1, []))[1]]
        self._check_header(header, columns)
        every = {**columns, **optional}
        parsers = [(parse, header.index(name) if name in header else None) for name, parse in every.items()]
        none = True
        for number, cells in records:
            none = False
            if len(cells) != len(header):
                self.refuse(number, f"{len(cells)} values", f"{len(header)}, one for each column")
                continue
            try:
                values = tuple([None if index is None else parse(cells[index]) for parse, index in parsers])
            except UnitError:
                self._refuse_cells(number, dict(zip(header, cells, strict=True)), every)
            else:
                yield values
        if none and not self._problems:
            self.refuse(1, "no row", "a row for each request behind the header")

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        """The cells of each CSV row that is not blank, with the line of its end; stops where it is no CSV."""
        number = 0

        def texts() -> Iterator[str]:
            nonlocal number
            for number, line in self.lines():  # noqa: B007 - read below
                yield line.decode()

        rows = csv.reader(texts(), skipinitialspace=True, strict=True)
        try:
            for cells in rows:
                if any(cell.strip() for cell in cells):
                    yield number, cells
        except csv.Error as error:
            self.refuse(number, f"is no CSV: {error}", "a row a line, with short cells")
        except UnicodeDecodeError as error:
            found = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
            self.refuse(number, found, "a text file in UTF-8, unpacked")

    def _check_header(self, header: list[str], needed: Mapping[str, object]) -> None:
        allowed = f"columns named {', '.join(needed)}"
        self.raise_if_any()
        if not header:
            raise ScenarioError(Problem(str(self.path), "the trace is empty", f"{allowed}, then rows"))
        missing = [name for name in needed if name not in header]
        twice = [name for name in needed if header.count(name) > 1]
        has = f"; there is {shown(', '.join(header))}" if self.quotes else ""
        if missing:
            found = f"no column {', '.join(missing)}{has}"
            raise ScenarioError(Problem(f"{self.path}:1", found, allowed))
        if twice:
            raise ScenarioError(Problem(f"{self.path}:1", f"{', '.join(twice)} twice", "each column once"))

    def _refuse_cells(
        self, line: int, cells: Mapping[str, str], parsers: Mapping[str, Callable[[str], Any]]
    ) -> None:
        for name, parse in parsers.items():
            try:
                parse(cells.get(name, ""))
            except UnitError as error:
                self.refuse(
                    line, error.found if self.quotes else "not what should stand here", error.allowed, name
                )


def parse_tokens(text: str) -> int:
    """`472` or `472.0` -> 472; raises UnitError."""
    match = _TOKENS.fullmatch(text.strip())
    tokens = int(match[1]) if match else MAX_TOKENS + 1
    if tokens > MAX_TOKENS:
        raise UnitError(f"{shown(text)} is no number of tokens", TOKENS_ALLOWED)
    return tokens


def parse_seconds_ns(text: str) -> int:
    """`12.5` or `1.25e1` -> 12_500_000_000, cut to whole nanoseconds; raises UnitError."""
    text = text.strip()
    match = _SECONDS.fullmatch(text)
    if match is not None:
        t_ns = int(match[1]) * NS_PER_S + int((match[2] or "")[:9].ljust(9, "0"))
    elif _SCIENTIFIC.fullmatch(text):
        t_ns = int(min(float(text), 2.0 * MAX_SECONDS) * NS_PER_S)
    else:
        raise UnitError(f"{shown(text)} is no time", SECONDS_ALLOWED)
    if t_ns > MAX_SECONDS * NS_PER_S:
        raise UnitError(f"{shown(text)} is too late", SECONDS_ALLOWED)
    return t_ns


def parse_session(text: str) -> str | None:
    """The name of a session; None where there is none."""
    return text.strip() or None
