"""The record: complete, exact, deterministic, and readable after any end of a run."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import msgspec
import polars as pl
import pytest

from agents import client
from testbed import record_rows
from testbed import tables as record
from testbed.errors import RunError
from testbed.plan import Plan
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import S, make_plan
from tests.unit.synthetic_run import T0_NS, note, write_run


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(requests=60)


@pytest.fixture
def run(tmp_path: Path, plan: Plan) -> RunDir:
    return write_run(tmp_path / "run", plan, tcp_lines=640)


def empty_run(directory: Path) -> RunDir:
    run = RunDir(directory)
    run.journal.mkdir(parents=True)
    return run


def test_tables_have_exactly_the_columns_of_the_schema(run: RunDir, plan: Plan) -> None:
    """Every table has the columns and types of TABLES, in memory and on disk."""
    built = record.build(run, plan)
    loaded = record.load(run)
    for name, schema in record.TABLES.items():
        assert built[name].schema == pl.Schema(schema)
        assert loaded[name].equals(built[name])


def test_request_times_follow_from_the_lines_of_all_writers(tmp_path: Path, plan: Plan) -> None:
    """A request joins client, router, prefill and decode by its id, in seconds since t0."""
    run = empty_run(tmp_path / "run")
    note(run, "bench", "start", T0_NS)
    note(
        run, "client", "request", T0_NS + S, id=0, t_first_ns=T0_NS + 4 * S, t_last_ns=T0_NS + 6 * S,
        t_end_ns=T0_NS + 7 * S, tokens=5, state="completed", cause=None,
    )  # fmt: skip
    note(
        run, "router", "decision", T0_NS + S, id=0, route="prfaas", prefill="p", decode="d",
        uncached_tokens=9, threshold_tokens=8, reason="long",
    )  # fmt: skip
    note(
        run, "prefill-x", "prefill", T0_NS + 1_500_000_000, id=0, t_start_ns=T0_NS + 2 * S,
        t_end_ns=T0_NS + 3 * S, tokens=9, kv_bytes=1000,
    )  # fmt: skip
    note(run, "decode-y", "kv", T0_NS + 3_250_000_000, id=0, size_bytes=1000, chunks=1, checksum_errors=0)
    note(
        run,
        "decode-y",
        "decode",
        T0_NS + 3_500_000_000,
        id=0,
        t_first_ns=T0_NS + 4 * S,
        t_last_ns=T0_NS + 5 * S,
        tokens=5,
    )

    row = record.build(run, plan)["requests"].row(0, named=True)

    expected = {
        "sent_s": 1.0, "ttft_s": 3.0, "e2e_s": 6.0, "queue_s": 0.5, "prefill_s": 1.0, "kv_transfer_s": 0.25,
        "itl_s": 0.25, "tokens": 5, "kv_bytes": 1000, "prefill": "prefill-x", "decode": "decode-y",
        "route": "prfaas", "threshold_tokens": 8, "state": "completed", "cause": None,
    }  # fmt: skip
    assert expected == {column: row[column] for column in expected}


def test_what_the_cache_gave_is_what_was_not_computed(tmp_path: Path, plan: Plan) -> None:
    """Of a prompt: computed, cached, and fetched for it; what both clusters had is in the decision."""
    run, first = empty_run(tmp_path / "run"), plan.requests[0]
    seen = {"view": {"t_s": 1.5}, "request": {"id": "0"}}
    note(
        run, "router", "decision", S, step=7, id=0, route="prfaas", prefill="p", decode="d",
        uncached_tokens=900, cached_prfaas_tokens=0, cached_pd_tokens=512, threshold_tokens=8,
        cache="best", compress=True, reason="long", seen=seen,
    )  # fmt: skip
    note(run, "router", "fetch", S, id=2**40, request=0, cluster="prfaas", tokens=512, arrived=True)
    note(run, "router", "fetch", S, id=2**40 + 1, request=1, cluster="prfaas", tokens=512, arrived=False)
    note(
        run, "p", "prefill", 2 * S, id=0, t_start_ns=2 * S, t_end_ns=3 * S, tokens=first.input_tokens - 512,
        kv_bytes=1000,
    )  # fmt: skip
    note(
        run, "router", "control", 3 * S, step=8, threshold_tokens=9, previous_tokens=8, reason="",
        capacity_bps=None, goodput_bps=0.0, backlog_bytes=0, retrans_ratio=0.0, regime="abundant",
        n_prefill=2, n_decode=1, seen={"view": {}},
    )  # fmt: skip
    tables = record.build(run, plan)
    request = tables["requests"].row(0, named=True)
    assert (request["computed_tokens"], request["cached_tokens"]) == (first.input_tokens - 512, 512)
    assert (request["fetched_tokens"], request["tenant"]) == (512, "default")
    assert tables["requests"]["cached_tokens"][1] is None, "nobody knows what was never computed"
    route, control = tables["decisions"].rows(named=True)
    expected = {
        "step": 7, "cached_prfaas_tokens": 0, "cached_pd_tokens": 512, "cache": "best", "compress": True,
    }  # fmt: skip
    assert expected == {column: route[column] for column in expected}
    assert json.loads(route["seen"]) == seen
    assert (control["regime"], control["n_prefill"], control["n_decode"], control["step"]) == (
        "abundant",
        2,
        1,
        8,
    )


def test_changes_of_role_are_joined_with_their_ends(tmp_path: Path, plan: Plan) -> None:
    """Told by the router, drained and done by the instance, more than once; the last one may not end."""
    run = empty_run(tmp_path / "run")
    note(run, "bench", "start", 0)
    for t_s, instance, role in ((10, "d1", "prefill"), (20, "d2", "prefill"), (60, "d1", "decode")):
        note(run, "router", "role", t_s * S, instance=instance, role=role)
    note(run, "d1", "conversion", 10 * S + 1, role="prefill", t_drained_ns=15 * S, t_end_ns=25 * S)
    note(run, "d1", "conversion", 60 * S + 1, role="decode", t_drained_ns=61 * S, t_end_ns=71 * S)
    rows = record.build(run, plan)["roles"].rows()
    assert rows == [
        (10.0, "d1", "prefill", 15.0, 25.0),
        (20.0, "d2", "prefill", None, None),
        (60.0, "d1", "decode", 61.0, 71.0),
    ]


def test_cached_prefixes_are_transfers_of_their_own_use(tmp_path: Path, plan: Plan) -> None:
    """One that arrived, and one that the end of the run cut off."""
    run = empty_run(tmp_path / "run")
    note(run, "bench", "start", 0)
    for number, t_s in ((1 << 40, 1), (1 << 40 | 1, 2)):
        note(
            run,
            "p",
            "transfer_begin",
            t_s * S,
            id=number,
            peer="d",
            use="cache",
            wan=True,
            size_bytes=8,
            chunks=1,
        )
    note(
        run, "p", "transfer", S, id=1 << 40, peer="d", use="cache", wan=True, size_bytes=8, chunks=1,
        t_end_ns=3 * S, state="completed", cause=None,
    )  # fmt: skip
    rows = record.build(run, plan)["transfers"].select("id", "use", "wan", "end_s").rows()
    assert rows == [(1 << 40, "cache", True, 3.0), (1 << 40 | 1, "cache", True, None)]


def test_a_single_token_has_no_time_between_tokens(tmp_path: Path, plan: Plan) -> None:
    """itl_s is null for one token, not a division by zero."""
    run = empty_run(tmp_path / "run")
    note(run, "d", "decode", 0, id=0, t_first_ns=1, t_last_ns=1, tokens=1)
    assert record.build(run, plan)["requests"]["itl_s"][0] is None


def test_a_request_that_was_tried_again_is_described_by_its_last_attempt(tmp_path: Path, plan: Plan) -> None:
    """Its way to the first token is that of the attempt that counted; the client saw all of them."""
    run = empty_run(tmp_path / "run")
    note(run, "bench", "start", 0)
    note(
        run, "router", "decision", S, id=0, route="prfaas", prefill="p", decode="d", uncached_tokens=9,
        threshold_tokens=8, reason="long",
    )  # fmt: skip
    note(
        run, "router", "retry", 3 * S, id=0, attempt=1, cause="p is down", action="recompute", route="pd",
        prefill="q", decode="e",
    )  # fmt: skip
    note(
        run, "router", "retry", 8 * S, id=0, attempt=1, cause="e is down", action="fail", route="pd",
        prefill=None, decode=None,
    )  # fmt: skip
    for writer, sink, attempt, at_s in (("p", "d", 0, 1), ("q", "e", 1, 4)):
        note(
            run, writer, "prefill", at_s * S, id=0, attempt=attempt, t_start_ns=at_s * S,
            t_end_ns=(at_s + 2) * S, tokens=9, kv_bytes=8,
        )  # fmt: skip
        note(
            run, sink, "kv", (at_s + 3) * S, id=0, attempt=attempt, size_bytes=8, chunks=2, checksum_errors=1
        )
    note(
        run, "client", "request", S, id=0, t_first_ns=8 * S, t_last_ns=9 * S, t_end_ns=9 * S, tokens=5,
        state="completed",
    )  # fmt: skip
    row = record.build(run, plan)["requests"].row(0, named=True)
    expected = {
        "route": "pd", "prefill": "q", "decode": "e", "prefill_start_s": 4.0, "kv_done_s": 7.0, "attempts": 2,
        "recomputed": True, "retried": False, "ttft_s": 7.0, "ttft_over_prefill": 3.5, "uncached_tokens": 9,
        "damaged": False, "served_twice": False,
    }  # fmt: skip
    assert expected == {column: row[column] for column in expected}
    more = msgspec.structs.replace(plan.requests[0], output_tokens=4)
    tables = record.build(run, msgspec.structs.replace(plan, requests=(more,)))
    assert tables["requests"]["served_twice"].to_list() == [True], "5 tokens, and 4 were asked for"


def test_what_the_client_cut_off_is_told_from_other_failures(tmp_path: Path, plan: Plan) -> None:
    """By the cause that the client's program gives, and no other one."""
    assert f'"{record_rows.CUT_OFF}"' in inspect.getsource(client)
    for cause, cut_off in ((record_rows.CUT_OFF, True), ("nothing from the router for 120 s", False)):
        run = empty_run(tmp_path / str(cut_off))
        note(run, "client", "request", S, id=0, t_end_ns=9 * S, state="failed", cause=cause)
        assert record.build(run, plan)["requests"]["cut_off"].to_list()[0] == cut_off


def test_a_line_from_before_there_were_attempts_is_of_the_first_one(tmp_path: Path, plan: Plan) -> None:
    """Numbers that a line does not have are nobody's word."""
    run = empty_run(tmp_path / "run")
    note(
        run, "p", "transfer", S, id=0, peer="d", wan=True, size_bytes=8, chunks=2, t_end_ns=2 * S,
        state="completed", cause=None,
    )  # fmt: skip
    row = record.build(run, plan)["transfers"].row(0, named=True)
    assert (row["attempt"], row["source_bytes"], row["resent_bytes"], row["resumed"]) == (
        0,
        None,
        None,
        False,
    )


def test_the_part_of_a_transfer_before_its_prefills_end_is_hidden(tmp_path: Path, plan: Plan) -> None:
    """From the first byte to the last chunk at the sink; of the same attempt's prefill."""
    run = empty_run(tmp_path / "run")
    note(run, "bench", "start", 0)
    for attempt, end_s in ((0, 9), (1, 4)):
        note(
            run, "p", "prefill", 0, id=0, attempt=attempt, t_start_ns=0, t_end_ns=end_s * S, tokens=9,
            kv_bytes=8,
        )  # fmt: skip
    note(
        run, "p", "transfer", 2 * S, id=0, attempt=1, peer="d", wan=True, size_bytes=8, chunks=2,
        t_end_ns=8 * S, state="completed", cause=None,
    )  # fmt: skip
    note(run, "d", "kv", 7 * S, id=0, attempt=1, size_bytes=8, chunks=2, checksum_errors=1)
    row = record.build(run, plan)["transfers"].row(0, named=True)
    assert (row["hidden_ratio"], row["checksum_errors"], row["goodput_bps"]) == (0.4, 1, 8 * 8 / 6)


def test_failures_have_their_tables(tmp_path: Path, plan: Plan) -> None:
    """Faults with their ends, who was down and how long, pools that go with the agent, and sockets."""
    run = empty_run(tmp_path / "run")
    note(run, "bench", "start", 0)
    for t_s, fault, active in (
        (5, "pause", True),
        (7, "pause", False),
        (8, "kill", True),
        (9, "pause", True),
    ):
        note(run, "bench", "fault", t_s * S, fault=fault, target="p", active=active, detail="so")
    note(run, "bench", "end", 20 * S, reason="complete")
    for t_s, instance, up in ((7, "p", False), (8, "q", True), (9, "p", True), (10, "p", False)):
        note(run, "router", "health", t_s * S, instance=instance, up=up, cause="silent")
    note(run, "p", "held", 4 * S, pool="send", size_bytes=9, transfers=1)
    note(run, "p", "connection", 4 * S, peer="d", opened=True, sockets=3, cause=None)
    tables = record.build(run, plan)
    assert tables["faults"].drop("detail").rows() == [
        (5.0, 7.0, "pause", "p"), (8.0, None, "kill", "p"), (9.0, None, "pause", "p"),
    ]  # fmt: skip
    assert tables["health"].select("t_s", "instance", "up", "down_s").rows() == [
        (7.0, "p", False, 2.0), (8.0, "q", True, None), (9.0, "p", True, None), (10.0, "p", False, 10.0),
    ]  # fmt: skip
    assert tables["pools"].rows() == [(4.0, "p", "send", 9, 1), (8.0, "p", "send", 0, 0)]
    assert tables["connections"].rows() == [(4.0, "p", "d", True, 3, None)]


def test_counters_become_differences(tmp_path: Path, plan: Plan) -> None:
    """Throughput and drops are those since the previous sample of the same direction."""
    run = empty_run(tmp_path / "run")
    fields = {
        "rate_bps": 1,
        "delay_ns": 1,
        "jitter_ns": 0,
        "loss_ratio": 0.0,
        "backlog_bytes": 0,
        "flight_packets": 0,
    }
    for index, tx_bytes in enumerate((100, 350)):
        for direction in ("a_to_b", "b_to_a"):
            note(
                run, "link", "link", index * S // 2, direction=direction, tx_bytes=tx_bytes,
                tx_packets=1, drops=2 * index,
                lost_packets=3 * index, **fields,
            )  # fmt: skip
    links = record.build(run, plan)["links"]
    assert links["throughput_bps"].to_list() == [None, None, 4000.0, 4000.0]
    assert links["drops"].to_list() == [None, None, 2, 2]
    assert links["lost_packets"].to_list() == [None, None, 3, 3]


def test_an_absent_journal_gives_empty_tables(tmp_path: Path, plan: Plan) -> None:
    """A run killed before its first line still has a record: every planned request is unfinished."""
    tables = record.build(RunDir(tmp_path), plan)
    assert set(tables["requests"]["state"]) == {"unfinished"}
    assert tables["requests"].height == len(plan.requests)
    assert all(tables[name].is_empty() for name in tables if name != "requests")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_a_truncated_journal_stays_readable(run: RunDir, plan: Plan, share: float) -> None:
    """Where a killed writer stopped in the middle of a line is no problem of trust."""
    for path in run.journal.glob("*.jsonl"):
        text = path.read_bytes()
        path.write_bytes(text[: int(len(text) * share)])
    events = record.build(run, plan)["events"]
    assert events.filter(pl.col("kind") == "trust").is_empty()


@pytest.mark.parametrize(
    "line", [b'{"kind":"link","t_ns":1}', b"{", b'{"kind":"nonsense","t_ns":1}', b'{"t_ns":1}', b"\xff"]
)
def test_a_malformed_line_is_a_problem_of_trust(run: RunDir, plan: Plan, line: bytes) -> None:
    """A line that is cut, unknown or incomplete is named with its file and number, and the rest is read."""
    path = run.journal / "link.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    tables = record.build(run, plan)
    noted = tables["events"].filter(pl.col("kind") == "trust")["detail"].to_list()
    assert len(noted) == 1
    assert noted[0].startswith("journal/link.jsonl: 1 malformed line(s), first line 1: ")
    assert tables["links"].height == 3600


def test_contradictions_are_problems_of_trust(run: RunDir, plan: Plan) -> None:
    """A request that ends twice, an unplanned one and a counter that falls are not passed over."""
    note(run, "client", "request", T0_NS, id=3, state="completed")
    note(run, "client", "request", T0_NS, id=9999, state="completed")
    path = run.journal / "link.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines).replace(b'"tx_bytes":', b'"tx_bytes":9999999999', 2))
    noted = record.build(run, plan)["events"].filter(pl.col("kind") == "trust")["detail"].to_list()
    assert any("more than once: [3]" in problem for problem in noted)
    assert any("does not have: [9999]" in problem for problem in noted)
    assert any("went backwards" in problem for problem in noted)


def test_the_digest_depends_on_content_alone(run: RunDir, plan: Plan, tmp_path: Path) -> None:
    """The same journal gives the same digest, whatever wrote the Parquet files; one other value another."""
    tables = record.build(run, plan)
    first = record.digest(run)
    for name, table in tables.items():
        table.write_parquet(run.record / f"{name}.parquet", compression="uncompressed", row_group_size=7)
    assert record.digest(run) == first
    again = write_run(tmp_path / "again", plan, tcp_lines=640)
    record.build(again, plan)
    assert record.digest(again) == first
    tables["tcp"] = tables["tcp"].with_columns(pl.col("rtt_s") + 1e-9)
    assert record.digest_tables(tables) != first


def test_loading_an_unbuilt_record_says_what_to_do(run: RunDir) -> None:
    """A missing table is a RunError with the command that makes it."""
    with pytest.raises(RunError, match=r"python -m testbed\.report"):
        record.load(run)


@pytest.mark.parametrize("left", [0, 3, 100, -1])
def test_a_damaged_table_is_named(run: RunDir, plan: Plan, left: int) -> None:
    """Cut short, to nothing or by one byte: the file, and the command that makes it again."""
    record.build(run, plan)
    path = run.record / "decisions.parquet"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(
        RunError, match=r"decisions\.parquet: cannot be read: (.|\n)*python -m testbed\.report"
    ):
        record.load(run)
