"""Trace files as people have them: every format is read to the nanosecond, or refused with its lines."""

from __future__ import annotations

import contextlib
import os
import typing
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from testbed import check
from testbed.errors import ScenarioError
from testbed.resolve import load_and_resolve
from testbed.scenario.workload import TraceWorkload
from testbed.units import NS_PER_S, UnitError
from testbed.workload import Load
from testbed.workload.azure import parse_time_ns
from testbed.workload.replay import ANY_LENGTH, FORMATS, read_rows, replay
from testbed.workload.trace_file import MAX_LINE_BYTES, TraceFile, parse_seconds_ns, parse_tokens

DATA = Path(__file__).parents[1] / "data"
MS = 1_000_000
HEADERS = {
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "vidur": b"arrived_at,num_prefill_tokens,num_decode_tokens\n",
}
RECORDED = {
    "mooncake": ("mooncake_conversation_2000.jsonl", 2000),
    "azure": ("azure_llm_2023_conv_2000.csv", 2000),
    "burstgpt": ("burstgpt_format_fixture.csv", 3),
}


def rows(kind: str, path: Path) -> list[tuple[int, int, int]]:
    """Time (ms), input and output tokens of each row."""
    read = read_rows(kind, TraceFile(path, quotes=True))
    return [(row.t_ns // MS, row.input_tokens, row.output_tokens) for row in read]


def refused(kind: str, path: Path) -> list[str]:
    """Where what is wrong, as `line: found`."""
    with pytest.raises(ScenarioError) as caught:
        read_rows(kind, TraceFile(path, quotes=True))
    return [f"{p.where.removeprefix(str(path)).lstrip(':')}: {p.found}" for p in caught.value.problems]


def replayed(path: Path, kind: str, seed: int = 1, **settings: object) -> Load:
    """A minute's replay of a file."""
    spec = TraceWorkload.model_validate({"kind": kind, "trace": path.name, **settings})
    draws = np.random.Generator(np.random.PCG64(seed))
    file = TraceFile(path, quotes=True)
    return replay(spec, 60 * NS_PER_S, file, max_tokens=ANY_LENGTH, where="x.yaml:1: window", draws=draws)


def written(path: Path, header: bytes, lines: list[str]) -> Path:
    """A CSV file."""
    path.write_bytes(header + "".join(f"{line}\n" for line in lines).encode())
    return path


def test_every_kind_has_a_reader() -> None:
    """What a scenario may say is what can be read."""
    assert list(typing.get_args(TraceWorkload.model_fields["kind"].annotation)) == list(FORMATS)


def test_azure_times_are_of_the_day() -> None:
    """They count from the earliest row, over midnight, with seven digits; rows are sorted."""
    path = DATA / "azure_2023.csv"
    assert rows("azure", path) == [(0, 700, 20), (1250, 1400, 0), (2000, 2800, 40), (2500, 2100, 30)]
    read = read_rows("azure", TraceFile(path, quotes=True))
    assert read[1].t_ns == 1_250_000_100


def test_azure_times_have_zones() -> None:
    """The form of 2024; zones count."""
    assert rows("azure", DATA / "azure_2024.csv") == [(0, 900, 10), (750, 800, 20), (2500, 700, 30)]


@pytest.mark.parametrize(
    ("early", "late", "apart_ns"),
    [
        ("2023-11-16 18:15:46", "2023-11-16T18:15:46.000000001Z", 1),
        ("2024-02-28 23:59:59.5", "2024-02-29 00:00:00", NS_PER_S // 2),
        ("2024-05-10 00:00:00+05:30", "2024-05-09 18:30:01", NS_PER_S),
        ("2024-05-10 00:00:00", "2024-05-09 23:00:00-01:00", 0),
    ],
)
def test_calendar_times(early: str, late: str, apart_ns: int) -> None:
    """Exact differences over days, leap days and zones."""
    assert parse_time_ns(late) - parse_time_ns(early) == apart_ns


def test_burstgpt_without_and_with_sessions() -> None:
    """Both column sets; a byte order mark, CRLF, quotes and blank lines do no harm."""
    assert rows("burstgpt", DATA / "burstgpt.csv") == [
        (3000, 610, 21), (3000, 0, 0), (4000, 1220, 0), (9000, 305, 77),
    ]  # fmt: skip
    path = DATA / "burstgpt_sessions.csv"
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    assert b"\r\n\r\n" in path.read_bytes()
    assert rows("burstgpt", path) == [(500, 512, 64), (1500, 100, 8), (6000, 1100, 32)]
    sessions = [row.session for row in read_rows("burstgpt", TraceFile(path, quotes=True))]
    assert sessions == ["talk-1", None, "talk-1"]


def test_vidur_seconds_are_floats() -> None:
    """Decimal and scientific; whole numbers may have a point; other columns do not matter."""
    path = DATA / "vidur.csv"
    assert rows("vidur", path) == [(0, 640, 16), (250, 1280, 8), (1750, 320, 1)]
    assert [row.session for row in read_rows("vidur", TraceFile(path, quotes=True))] == ["7", "7", "8"]


def test_aiperf_turns_grow() -> None:
    """A turn's prompt is all that was said and its own input, `delay` after the turn before."""
    assert rows("aiperf", DATA / "aiperf.jsonl") == [
        (0, 1000, 10),
        (250, 600, 20),
        (500, 1100, 500),
        (500, 512, 8),
        (2000, 1100 + 500 + 200, 30),
        (3000, 1800 + 30 + 300, 5),
    ]


def test_aiperf_prefixes() -> None:
    """Named blocks come through in first turns; a session shares what it said, and nothing with others."""
    read = read_rows("aiperf", TraceFile(DATA / "aiperf.jsonl", quotes=True))
    assert [row.hash_ids for row in read[:3]] == [(4, 5), (), (4, 6, 7)]
    other, second, third = (row.hash_ids for row in read[3:])
    assert second[:2] == (4, 6)
    assert third[:3] == second[:3]
    assert [len(other), len(second), len(third)] == [1, 4, 5]
    own = {*other, *second[2:], *third[3:]}
    assert len(own) == 1 + 2 + 2
    assert min(own) > 7


def test_aiperf_histories_end(tmp_path: Path) -> None:
    """A session whose prompts outgrow everything is refused where it does, before it fills the memory."""
    path = tmp_path / "t.jsonl"
    turn = '{"session_id": 1, "timestamp": 0, "input_length": 1000000, "output_length": 100000}\n'
    path.write_text(turn * 50)
    assert refused("aiperf", path) == ["4: the prompt is too long with its session's history"]


def test_rows_without_tokens_are_left_out_and_counted() -> None:
    """Failed requests of BurstGPT ask for nothing; the plan says how many there were."""
    load = replayed(DATA / "burstgpt.csv", "burstgpt")
    assert [request.input_tokens for request in load.requests] == [610, 305]
    assert load.notes == ("burstgpt.csv: 4 rows, 2 without tokens left out, 2 in the window",)


def test_check_shows_what_became_of_rows() -> None:
    """`testbed.check` has a line for each trace, and the policy knows lengths and rate."""
    parts = (
        "{kind: burstgpt, trace: burstgpt.csv}, {kind: vidur, trace: vidur.csv, sample: 100%}, "
        "{kind: mooncake, trace: trace.jsonl, clamp: true}"
    )
    _, plan = load_and_resolve(
        DATA / "base.yaml", overrides=[f"workload={{kind: mix, parts: [{parts}]}}"], traces=DATA
    )
    shown = StringIO()
    check.show(plan, Console(file=shown, width=200))
    assert "burstgpt.csv: 4 rows, 2 without tokens left out, 2 in the window" in shown.getvalue()
    assert "trace.jsonl: 4 rows, 4 in the window, 1 shortened to 131072 tokens" in shown.getvalue()
    assert plan.policy.prior_arrival_per_s == pytest.approx(len(plan.requests) / 20)
    assert sorted(set(plan.policy.length_quantiles)) == sorted({r.input_tokens for r in plan.requests})


@pytest.mark.parametrize("kind", HEADERS)
def test_windows_scale_and_clamp_work_for_all(kind: str, tmp_path: Path) -> None:
    """What Mooncake's traces can, the others can."""
    times = ["2023-11-16 00:00:{:02}", "{}", "{}"][list(HEADERS).index(kind)]
    cells = "{},x,{},9,9,x" if kind == "burstgpt" else "{},{},9"
    lines = [cells.format(times.format(second), 100 + second) for second in range(40)]
    path = written(tmp_path / "t.csv", HEADERS[kind], lines)
    load = replayed(path, kind, window={"start": "10s", "length": "5s"}, time_scale=2)
    assert [(r.t_ns // NS_PER_S, r.input_tokens) for r in load.requests] == [
        (2 * n, 110 + n) for n in range(5)
    ]
    assert load.arrival_per_s == pytest.approx(0.5)


def test_a_sample_is_the_seeds(tmp_path: Path) -> None:
    """A share of the rows, the same for a seed, another for another, and the same ones in any window."""
    path = written(tmp_path / "t.csv", HEADERS["vidur"], [f"{n / 100},{n + 1},9" for n in range(6000)])

    def drawn(seed: int, **more: object) -> list[int]:
        return [r.input_tokens for r in replayed(path, "vidur", seed, sample=0.1, **more).requests]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert abs(len(drawn(1)) - 600) < 4 * (6000 * 0.09) ** 0.5
    late = drawn(1, window={"start": "30s"})
    assert late == [tokens for tokens in drawn(1) if tokens > 3000]
    assert replayed(path, "vidur", sample=1).notes == ("t.csv: 6000 rows, 6000 in the window",)


def test_a_sample_keeps_sessions_whole(tmp_path: Path) -> None:
    """A session is in or out with all its turns, and rows without one are drawn one by one."""
    header = b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    lines = [f"{n / 100},{f's{n % 500}' if n % 2 else ''},1,x,{n + 1},9,9,x" for n in range(5000)]
    load = replayed(written(tmp_path / "t.csv", header, lines), "burstgpt", sample=0.2)
    numbers = [request.input_tokens - 1 for request in load.requests]
    turns = [n % 500 for n in numbers if n % 2]
    assert {turns.count(session) for session in set(turns)} == {10}
    assert abs(len(set(turns)) - 50) < 4 * (250 * 0.16) ** 0.5
    assert abs(len([n for n in numbers if not n % 2]) - 500) < 4 * (2500 * 0.16) ** 0.5


def test_more_requests_than_a_run_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of millions is refused with what to do about it."""
    monkeypatch.setattr("testbed.resolve.workload.MAX_REQUESTS", 2)
    with pytest.raises(ScenarioError, match=r"3 requests within the run\n.*at most 2\n.*or sample"):
        load_and_resolve(
            DATA / "base.yaml", overrides=["workload={kind: vidur, trace: vidur.csv}"], traces=DATA
        )


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", ": the trace is empty"),
        (b"\n  \n", ": the trace is empty"),
        (HEADERS["vidur"], "1: no row"),
        (b"arrived_at,num_decode_tokens\n1,2\n", "1: no column num_prefill_tokens; there is"),
        (b"arrived_at,arrived_at,num_prefill_tokens,num_decode_tokens\n", "1: arrived_at twice"),
        (b"\x1f\x8b\x08\x00abc", "1: byte 0x8b is not UTF-8"),
        (HEADERS["vidur"] + b"1,2,3\n1,\xff,3\n", "3: byte 0xff is not UTF-8"),
        (HEADERS["vidur"] + b'1,2,3\n1,"2,3\n', "3: is no CSV: unexpected end of data"),
        (HEADERS["vidur"] + b"1,\x00,3\n", '2: num_prefill_tokens: "\\x00" is no number of tokens'),
        (HEADERS["vidur"] + b"x" * MAX_LINE_BYTES, "2: a line of 1 MiB or more"),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, content: bytes, found: str) -> None:
    """Empty, binary, cut off: one problem, with its line."""
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    (problem,) = refused("vidur", path)
    assert problem.startswith(found)


def test_more_blocks_than_tokens_are_refused(tmp_path: Path) -> None:
    """Ids of other blocks than ours, as of a trace made with 16 tokens each, would mean other prefixes."""
    row = '{{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": {}}}'
    lines = [row.format(ids) for ids in ([1, 2], [1, 2, 3], [])]
    problems = refused("mooncake", written(tmp_path / "t.jsonl", b"", lines))
    assert problems == ["2: 3 hash_ids for 1024 tokens"]


def test_the_first_ten_problems_come_at_once(tmp_path: Path) -> None:
    """Not one by one, and not a million; rows before and between are fine."""
    lines = ["1,2,3", *["x,2,3", "1,2,3"] * 20]
    problems = refused("vidur", written(tmp_path / "t.csv", HEADERS["vidur"], lines))
    assert problems == [f'{line}: arrived_at: "x" is no time' for line in range(3, 23, 2)]


def test_files_elsewhere_are_not_quoted(tmp_path: Path) -> None:
    """What stands in a file outside the directory of traces stays there."""
    path = written(tmp_path / "secret", HEADERS["vidur"], ["hunter2,hunter2,3"])
    for header in (HEADERS["vidur"], b"hunter2\n"):
        path.write_bytes(header + b"hunter2,hunter2,3\n")
        with pytest.raises(ScenarioError) as caught:
            load_and_resolve(
                DATA / "base.yaml",
                overrides=[f"workload={{kind: vidur, trace: ../{tmp_path.name}/secret}}"],
                traces=_made(tmp_path.parent / "traces"),
            )
        assert "hunter2" not in str(caught.value)


def _made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory


@given(st.sampled_from(sorted(FORMATS)), st.binary())
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, kind: str, content: bytes
) -> None:
    """No content of a trace makes a reader fail in another way than with a ScenarioError."""
    path = tmp_path_factory.getbasetemp() / "any"
    for text in (content, HEADERS.get(kind, b'{"timestamp": ') + content):
        path.write_bytes(text)
        with contextlib.suppress(ScenarioError):
            read_rows(kind, TraceFile(path, quotes=True))


@given(st.text(max_size=12) | st.from_regex(r"[0-9.eE+-]{1,9}", fullmatch=True))
@settings(deadline=None)
def test_any_cell_is_a_number_or_refused(text: str) -> None:
    """NaN, infinity, signs, other digits: never anything but a number in range or a UnitError."""
    with contextlib.suppress(UnitError):
        assert 0 <= parse_tokens(text) <= 10**9
        assert float(text).is_integer()
    with contextlib.suppress(UnitError):
        assert parse_seconds_ns(text) == pytest.approx(float(text) * NS_PER_S, rel=1e-12, abs=2)


@pytest.mark.parametrize("kind", RECORDED)
def test_recorded_traces_load(kind: str) -> None:
    """The public data sets themselves, where TESTBED_TRACES has their heads."""
    name, number = RECORDED[kind]
    path = Path(os.environ.get("TESTBED_TRACES", ""), name)
    if not path.is_file():
        pytest.skip(f"needs {name} in TESTBED_TRACES")
    read = read_rows(kind, TraceFile(path, quotes=True))
    assert len(read) == number
    assert all(row.input_tokens and row.output_tokens for row in read)
    load = replayed(path, kind, window={"length": "10min"}, time_scale=0.1)
    assert len(load.requests) == sum(row.t_ns < 600 * NS_PER_S for row in read)
