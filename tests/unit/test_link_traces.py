"""Files that the link follows: read back exactly as they were written, refused line by line."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from math import isclose
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import ScenarioError
from testbed.resolve.findings import Findings
from testbed.resolve.link_traces import FLOOR, binned, read_delays, read_mahimahi, read_trace
from testbed.scenario.source import KeyPath, Source
from testbed.units import format_duration_ns, format_rate_bps

MS = 1_000_000


def findings(directory: Path) -> Findings:
    """Where problems of a scenario in that directory go."""
    return Findings(Source(str(directory / "x.yaml"), b"", {}))


def problems(found: Findings) -> str:
    """The problems as the user reads them."""
    with pytest.raises(ScenarioError) as caught:
        found.raise_if_any()
    return str(caught.value)


@given(
    st.lists(
        st.tuples(st.integers(10**6, 10**10), st.integers(1, 10**12), st.integers(0, 10**9)),
        min_size=1,
        max_size=30,
    )
)
@settings(max_examples=50, deadline=None)
def test_a_trace_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, int]]
) -> None:
    """What is written in units is read in integers, whatever the values."""
    times = [sum(row[0] for row in rows[:number]) for number in range(len(rows))]
    lines = [
        f"{format_duration_ns(t_ns)}, {format_rate_bps(rate)}, {format_duration_ns(delay)}"
        for t_ns, (_, rate, delay) in zip(times, rows, strict=True)
    ]
    path = tmp_path_factory.mktemp("trace") / "link.csv"
    path.write_text("t, rate, delay\n" + "\n".join(lines) + "\n")
    trace = read_trace(path, (), findings(path.parent))
    assert trace is not None
    assert trace.times_ns == tuple(times)
    assert [(row["rate"], row["delay"]) for row in trace.rows] == [row[1:] for row in rows]


def test_comments_and_empty_lines_say_nothing(tmp_path: Path) -> None:
    """A trace may explain itself; lines of its problems are those of the file."""
    path = tmp_path / "link.csv"
    path.write_text("# why\n\nt,loss\n# first\n0s,1%\n\n1s,bad\n")
    found = findings(tmp_path)
    assert read_trace(path, (), found) is None
    assert problems(found).startswith(f'{path}:7: loss: "bad" is no ratio')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: no header, as the file has no lines"),
        ("t,rate\n0s,1gbit\n999us,2gbit\n", ":3: t: 999us after the row before is shorter than 1ms"),
        (f't,rate\n0s,"{"x" * 200_000}"\n', ":2: is no CSV: field larger than field limit"),
        ("rate\n1gbit\n", ':1: the header "rate"'),
        ("t\n1s\n", ':1: the header "t"'),
        ("t,speed\n1s,1gbit\n", ':1: the header "t,speed"'),
        ("t,rate\n", ":1: no rows"),
        ("t,rate\n0s,1gbit\n0s,2gbit\n", ":3: t: not after the row before it"),
        ("t,rate\n0s,\n", ':2: rate: "" is no rate'),
        ("t,loss\n0s,1e-10\n", ":2: loss: 1e-10 is below netem's step"),
        ("t,rate\n0s,1gbit,2gbit\n", ":2: 3 values"),
        ("t,rate\n0s,\x00\n", ":2: rate: "),
    ],
)
def test_wrong_traces_are_named(tmp_path: Path, text: str, message: str) -> None:
    """Each mistake is a problem with the file and its line."""
    path = tmp_path / "link.csv"
    path.write_text(text)
    found = findings(tmp_path)
    assert read_trace(path, (), found) is None
    assert message in problems(found)


def test_files_from_elsewhere_are_not_quoted(tmp_path: Path) -> None:
    """What lies outside the scenario's directory is refused by line, without a word of it."""
    path = tmp_path / "secret"
    for text, read in (
        ("hunter2:x:0\n", read_trace),
        ("t,rate\n0s,hunter2\n", read_trace),
        ("hunter2\n", read_mahimahi),
        ("delay\nhunter2\n", read_delays),
    ):
        path.write_text(text)
        here, elsewhere = findings(tmp_path), findings(tmp_path / "scenarios")
        assert read(path, (), here) is read(path, (), elsewhere) is None
        assert "hunter2" in problems(here)
        assert "hunter2" not in problems(elsewhere)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    """Devices, directories and pipes are not read at all."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        found = findings(tmp_path)
        assert read_trace(path, (), found) is None
        assert f"{path} is not a regular file" in problems(found)


@pytest.mark.parametrize(
    ("line", "rows", "read"),
    [("5ms\n", 100_000, read_delays), ("0s,1gbit\n", 100_000, read_trace), ("7\n", 1_000_000, read_mahimahi)],
)
def test_too_many_rows_are_refused_before_any_is_read(
    tmp_path: Path, line: str, rows: int, read: Callable[[Path, KeyPath, Findings], object]
) -> None:
    """Lines are counted first: the only problem is their number."""
    path = tmp_path / "many"
    path.write_text(line * (rows + 2))
    found = findings(tmp_path)
    assert read(path, (), found) is None
    assert problems(found).startswith(f"{path}: {rows + 2} lines that are not comments")


def test_many_mistakes_end_early(tmp_path: Path) -> None:
    """A file of another kind gives ten problems, not a million."""
    path = tmp_path / "link.csv"
    path.write_text("t,rate\n" + "x,y\n" * 1000)
    found = findings(tmp_path)
    assert read_trace(path, (), found) is None
    assert problems(found).count("allowed:") == 10


def test_a_trace_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named with their line."""
    path = tmp_path / "link.csv"
    path.write_bytes(b"t,rate\n0s,\xff\n")
    found = findings(tmp_path)
    assert read_trace(path, (), found) is None
    assert f"{path}:2: byte 0xff is not UTF-8" in problems(found)


def test_delays_are_read(tmp_path: Path) -> None:
    """One column of durations; a delay of nothing is none."""
    path = tmp_path / "delays.csv"
    path.write_text("delay\n5ms\n6.5ms\n")
    assert read_delays(path, (), findings(tmp_path)) == (5 * MS, 6_500_000)


def test_mahimahi_traces_are_read(tmp_path: Path) -> None:
    """Milliseconds, one a line, several opportunities at once allowed."""
    path = tmp_path / "a.mahi"
    path.write_text("1\n1\n5\n")
    assert read_mahimahi(path, (), findings(tmp_path)) == (1, 1, 5)


@given(
    moments=st.lists(st.integers(0, 10_000), min_size=1, max_size=200)
    .map(sorted)
    .filter(lambda ms: ms[-1] > 0),
    bin_ms=st.integers(1, 3_000),
    mean_bps=st.integers(10**9, 10**11),
)
@settings(max_examples=100, deadline=None)
def test_bins_keep_the_mean_and_the_floor(moments: list[int], bin_ms: int, mean_bps: int) -> None:
    """Over a round the mean is as asked, no bin is below the floor, and bins begin on the grid."""
    trace = binned(tuple(moments), bin_ms * MS, mean_bps)
    ends = (*trace.times_ns[1:], trace.length_ns)
    sent = sum(
        row["rate"] * (end - begin) for begin, end, row in zip(trace.times_ns, ends, trace.rows, strict=True)
    )
    assert isclose(sent / trace.length_ns, mean_bps, rel_tol=1e-6)
    assert min(row["rate"] for row in trace.rows) >= int(FLOOR * mean_bps)
    assert trace.length_ns == moments[-1] * MS
    assert all(t_ns % (bin_ms * MS) == 0 for t_ns in trace.times_ns)


def test_our_traces_are_those_that_the_program_writes() -> None:
    """The traces beside the scenarios come from make_traces.py, to the byte."""
    links = Path(__file__).parents[2] / "scenarios/links"
    written = runpy.run_path(str(links / "make_traces.py"))
    names = {"fluctuating.csv": "fluctuating", "fading.mahimahi": "fading", "delays.csv": "delays"}
    for name, function in names.items():
        assert (links / name).read_text() == written[function](), name
