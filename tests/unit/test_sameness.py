"""Two records compared: equal, or the place where they part."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import polars as pl
import pytest

from testbed import sameness
from testbed import tables as record
from testbed.rundir import RunDir
from testbed.sameness import Difference, first_difference
from testbed.units import NS_PER_S
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

Tables = dict[str, pl.DataFrame]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    plan = make_plan()
    return record.build(write_run(tmp_path_factory.mktemp("sameness") / "run", plan), plan)


def changed(tables: Tables, name: str, row: int, column: str, value: object) -> Tables:
    """The same tables with one value replaced."""
    values = tables[name][column].to_list()
    values[row] = value
    series = pl.Series(column, values, dtype=tables[name][column].dtype)
    return {**tables, name: tables[name].with_columns(series)}


def test_equal_records_have_no_difference(tables: Tables) -> None:
    """Nulls are equal to nulls."""
    assert first_difference(tables, dict(tables)) is None


def test_the_difference_is_named_to_the_value(tables: Tables) -> None:
    """Table, row, virtual time, column and both values."""
    t_s = tables["links"]["t_s"][7]
    before = tables["links"]["backlog_bytes"][7]
    found = first_difference(tables, changed(tables, "links", 7, "backlog_bytes", 123456789))
    assert found == Difference("links", 7, t_s, "backlog_bytes", (before, 123456789))
    assert f"row 7 at {t_s:.9f} virtual s: backlog_bytes is {before} in the first" in str(found)


def test_a_null_differs_from_a_value(tables: Tables) -> None:
    """What happened in one run only is a difference."""
    found = first_difference(tables, changed(tables, "requests", 3, "ttft_s", None))
    assert found is not None
    assert (found.table, found.row, found.column, found.values[1]) == ("requests", 3, "ttft_s", None)


def test_the_earliest_of_several_is_told(tables: Tables) -> None:
    """Not the first table in order, but the first moment at which the runs parted."""
    late = changed(tables, "decisions", tables["decisions"].height - 1, "reason", "another")
    both = changed(late, "links", 2, "drops", 99)
    found = first_difference(tables, both)
    assert found is not None
    assert (found.table, found.row) == ("links", 2)


def test_a_row_counts_from_when_it_parts(tables: Tables) -> None:
    """A request that arrived early and ended late differs when its end does, not when it arrived."""
    end_s = tables["requests"]["end_s"][0]
    ended = changed(tables, "requests", 0, "end_s", end_s + 1)
    between = int((tables["links"]["t_s"] < end_s).sum()) - 1
    found = first_difference(tables, ended)
    assert found is not None
    assert (found.row, found.t_s, found.column) == (0, end_s, "end_s")
    found = first_difference(tables, changed(ended, "links", between, "drops", 99))
    assert found is not None
    assert (found.table, found.row) == ("links", between)


def test_a_missing_row_is_a_difference(tables: Tables) -> None:
    """The record that is longer says when."""
    shorter = {**tables, "tcp": tables["tcp"].head(tables["tcp"].height - 1)}
    for found in (first_difference(tables, shorter), first_difference(shorter, tables)):
        assert found is not None
        assert (found.table, found.row, found.column) == ("tcp", shorter["tcp"].height, "")
        assert found.t_s == tables["tcp"]["t_s"][-1]


def capture(times_ns: list[int], payload: bytes = b"payload", cut: int = 0) -> bytes:
    """A file as tcpdump writes it, with packets at these moments since 1970, without its last `cut` bytes."""
    file = struct.pack("<LHHLLLL", 0xA1B23C4D, 2, 4, 0, 0, 96, 1)
    for t_ns in times_ns:
        size = len(payload)
        file += struct.pack("<LLLL", t_ns // NS_PER_S, t_ns % NS_PER_S, size, size) + payload
    return file[: len(file) - cut]


T0_NS = 1_735_689_600 * NS_PER_S
MOMENTS_NS = [T0_NS + 1_000, T0_NS + 2_000, T0_NS + NS_PER_S]
WHOLE = capture(MOMENTS_NS)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (WHOLE, []),
        (None, [": only one of the runs has it"]),
        (
            capture([*MOMENTS_NS[:2], MOMENTS_NS[2] + 512]),
            [", packet 2 at 1.000000000 virtual s: it is at 1.000000512 in the second run"],
        ),
        (
            capture(MOMENTS_NS, b"paYload"),
            [", packet 0 at 0.000001000 virtual s: byte 42 of the file differs"],
        ),
        (capture(MOMENTS_NS[:2]), [", packet 2 at 1.000000000 virtual s: only one of the runs has it"]),
        (
            capture([*MOMENTS_NS, MOMENTS_NS[2] + 1]),
            [", packet 3 at 1.000000001 virtual s: only one of the runs has it"],
        ),
        (capture(MOMENTS_NS, cut=1), [", packet 2 at 1.000000000 virtual s: byte 92 of the file differs"]),
        (b"\0" + WHOLE[1:], [", byte 0: the headers of the files differ"]),
        (b"", [", byte 0: the headers of the files differ"]),
    ],
)
def test_the_packet_is_named_in_which_captures_part(
    second: bytes | None, said: list[str], tmp_path: Path
) -> None:
    """Its number and virtual time; a capture that only one run has, or that is cut off, is a difference."""
    one, two = RunDir(tmp_path / "one"), RunDir(tmp_path / "two")
    for run, content in ((one, WHOLE), (two, second)):
        run.pcap.mkdir(parents=True)
        if content is not None:
            (run.pcap / "eth0.pcap").write_bytes(content)
    began = {"t_s": [-0.5], "kind": ["capture"], "name": ["eth0"]}
    events = pl.DataFrame({**began, "detail": [json.dumps({"realtime_ns": T0_NS - NS_PER_S // 2})]})
    found = list(sameness.differing_captures(one, two, events))
    assert found == [f"pcap/eth0.pcap{text}" for text in said]
