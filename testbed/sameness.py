"""Whether two runs of one plan say the same, and where they first do not."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from testbed.capture.summary import zeros_ns
from testbed.rundir import RunDir
from testbed.tables import TABLES
from testbed.units import NS_PER_S

MOMENTS = frozenset({
    "t_s", "arrival_s", "sent_s", "prefill_start_s", "prefill_end_s", "kv_done_s", "decode_start_s",
    "first_token_s", "last_token_s", "start_s", "end_s", "left_s", "arrived_s", "source_end_s", "sink_end_s",
})  # fmt: skip
"""Columns that say when something happened, in virtual seconds since t0."""
BLOCK_BYTES = 1 << 20
FILE_HEADER_BYTES = 24
PACKET_HEADER = struct.Struct("<LLLL")
"""Seconds, nanoseconds, bytes in the file, bytes on the wire; the guest is little-endian."""


@dataclass(frozen=True)
class Difference:
    """Where two records of a table first differ; `column` is empty for a row that only one of them has."""

    table: str
    row: int
    t_s: float | None
    """Virtual seconds since t0: the earlier of two moments that differ, else the last moment of the row."""
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


def differing_captures(first: RunDir, second: RunDir, events: pl.DataFrame) -> Iterator[str]:
    """Captures that are not the same, byte for byte, and the first packet in which they are not.

    `events` of the first run tie the captures' clock to t0.
    """
    zero_ns = dict(zeros_ns(events))
    names = {path.name for run in (first, second) for path in run.pcap.glob("*.pcap")}
    for name in sorted(names):
        one, two = first.pcap / name, second.pcap / name
        if not (one.is_file() and two.is_file()):
            yield f"pcap/{name}: only one of the runs has it"
        elif (at := _first_byte(one, two)) is not None:
            yield f"pcap/{name}, {_packet(one, two, at, zero_ns.get(one.stem, 0))}"


def _in_table(name: str, first: pl.DataFrame, second: pl.DataFrame) -> Difference | None:
    common = min(first.height, second.height)
    one, two = first.head(common), second.head(common)
    found = [cell for column in one.columns if (cell := _earliest(one, two, column)) is not None]
    if found:
        t_s, row, column = min(found, key=lambda cell: cell[:2])
        known_s = None if math.isinf(t_s) else t_s
        return Difference(name, row, known_s, column, (one[column][row], two[column][row]))
    if first.height != second.height:
        longer = first if first.height > second.height else second
        return Difference(name, common, _last_moment(longer)[common], "", (None, None))
    return None


def _earliest(one: pl.DataFrame, two: pl.DataFrame, column: str) -> tuple[float, int, str] | None:
    """When, in which row and column the values of a column first differ; infinity where no row says when."""
    differs = one[column].ne_missing(two[column])
    if not differs.any():
        return None
    moments = _min(one[column], two[column]) if column in MOMENTS else _last_moment(one)
    at_s = np.where(differs, moments.fill_null(math.inf), math.inf)
    row = int(at_s.argmin()) if np.isfinite(at_s).any() else int(differs.arg_max() or 0)
    return float(at_s[row]), row, column


def _last_moment(table: pl.DataFrame) -> pl.Series:
    """What a row says is settled by the last of its moments."""
    return table.select(pl.max_horizontal(name for name in table.columns if name in MOMENTS)).to_series()


def _min(one: pl.Series, two: pl.Series) -> pl.Series:
    return pl.select(pl.min_horizontal(one, two)).to_series()


def _first_byte(one: Path, two: Path) -> int | None:
    with one.open("rb") as first, two.open("rb") as second:
        for start in range(0, max(one.stat().st_size, two.stat().st_size) + 1, BLOCK_BYTES):
            left, right = first.read(BLOCK_BYTES), second.read(BLOCK_BYTES)
            if left != right:
                pairs = zip(left, right, strict=False)
                shorter = min(len(left), len(right))
                return start + next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)
    return None


def _packet(one: Path, two: Path, at: int, zero_ns: int) -> str:
    """The packet in which the files part, at byte `at`, and its time. Format: pcap-savefile(5)."""
    with one.open("rb") as first, two.open("rb") as second:
        number, start = 0, FILE_HEADER_BYTES
        while (header := _header(first, start)) and start + PACKET_HEADER.size + header[2] <= at:
            number, start = number + 1, start + PACKET_HEADER.size + header[2]
        headers = [header for file in (first, second) if (header := _header(file, start))]
    times = [(header[0] * NS_PER_S + header[1] - zero_ns) / NS_PER_S for header in headers]
    if at < FILE_HEADER_BYTES or not times:
        return f"byte {at}: the headers of the files differ"
    if len(times) == 1:
        return f"packet {number} at {times[0]:.9f} virtual s: only one of the runs has it"
    if times[0] != times[1]:
        return f"packet {number} at {times[0]:.9f} virtual s: it is at {times[1]:.9f} in the second run"
    return f"packet {number} at {times[0]:.9f} virtual s: byte {at} of the file differs"


def _header(file: BinaryIO, start: int) -> tuple[int, ...]:
    """The header of the packet that begins there; empty where there is none."""
    file.seek(start)
    read = file.read(PACKET_HEADER.size)
    return PACKET_HEADER.unpack(read) if len(read) == PACKET_HEADER.size else ()
