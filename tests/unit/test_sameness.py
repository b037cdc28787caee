"""Two records compared: equal, or the place where they part."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from testbed import record, sameness
from testbed.sameness import Difference, first_difference
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


def test_a_missing_row_is_a_difference(tables: Tables) -> None:
    """The record that is longer says when."""
    shorter = {**tables, "tcp": tables["tcp"].head(tables["tcp"].height - 1)}
    for found in (first_difference(tables, shorter), first_difference(shorter, tables)):
        assert found is not None
        assert (found.table, found.row, found.column) == ("tcp", shorter["tcp"].height, "")
        assert found.t_s == tables["tcp"]["t_s"][-1]


def test_files_are_compared_byte_for_byte(tmp_path: Path) -> None:
    """Equal, different, cut short, and there in one run only."""
    one, two = tmp_path / "one", tmp_path / "two"
    for place, contents in (
        (one, {"same": b"x" * 9, "other": b"a" * 2_000_000 + b"b", "cut": b"123", "alone": b""}),
        (two, {"same": b"x" * 9, "other": b"a" * 2_000_000 + b"c", "cut": b"12"}),
    ):
        (place / "pcap").mkdir(parents=True)
        for name, content in contents.items():
            (place / f"pcap/{name}.pcap").write_bytes(content)
    assert list(sameness.differing_files(one, two, "pcap/*.pcap")) == [
        "pcap/alone.pcap: only one of the runs has it",
        "pcap/cut.pcap: differs from byte 2 on",
        "pcap/other.pcap: differs from byte 2000000 on",
    ]
