"""Telemetry that was cut short: samples reach from the start of a run to its end, or it is not trusted."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import polars as pl
import pytest

from testbed import audit, expect
from testbed import tables as record
from testbed.plan import BulkTransfer, Plan
from testbed.rundir import RunDir
from tests.unit.synthetic_plan import S, make_plan
from tests.unit.synthetic_run import note, ns, write_run

PLAN = make_plan(requests=40)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return write_run(tmp_path / "run", PLAN, tcp_lines=64)


def reasons(run: RunDir, plan: Plan = PLAN) -> list[str]:
    tables = record.build(run, plan)
    return expect.trust(run, tables, audit.judge(plan, tables))


def keep(run: RunDir, writer: str, from_s: float, to_s: float) -> None:
    """Leave only the lines of a writer within this time."""
    path = run.journal / f"{writer}.jsonl"
    kept = [
        line
        for line in path.read_bytes().splitlines(keepends=True)
        if ns(from_s) <= json.loads(line)["t_ns"] < ns(to_s)
    ]
    path.write_bytes(b"".join(kept))


@pytest.mark.parametrize(
    ("from_s", "to_s", "gap"),
    [(-1, 60, "59.9 to 179"), (-1, 178.4, "178 to 179"), (0.6, 200, "0 to 0.6")],
)
def test_samples_of_the_link_that_do_not_reach_over_the_run_are_a_reason(
    run: RunDir, from_s: float, to_s: float, gap: str
) -> None:
    """Of each direction, with the file and the gap."""
    keep(run, "link", from_s, to_s)
    begun, ended = gap.split(" to ")
    found = [one for one in reasons(run) if "samples:" in one]
    assert [one.partition(",")[0] for one in found] == ["link a_to_b", "link b_to_a"]
    for one in found:
        assert f"none from {begun}" in one
        assert f" s to {ended}" in one
        assert one.endswith("journal/link.jsonl is not whole")


def test_a_hole_in_the_middle_is_a_reason(run: RunDir) -> None:
    """Whole lines that are gone leave nothing malformed behind."""
    path = run.journal / "link.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    hole = {number for number, line in enumerate(lines) if ns(30) <= json.loads(line)["t_ns"] < ns(31)}
    path.write_bytes(b"".join(line for number, line in enumerate(lines) if number not in hole))
    assert "none from 29.9 s to 31 s" in reasons(run)[0]


def test_kv_that_arrived_without_a_sample_of_tcp_is_a_reason(run: RunDir) -> None:
    """Over the WAN, where the samples of the link say that it was carried."""
    keep(run, "tcp", -1, 60)
    (reason,) = reasons(run)
    assert reason.startswith("link a_to_b, samples of TCP: none from ")
    assert reason.endswith("journal/tcp.jsonl is not whole")


def test_no_samples_of_tcp_at_all_are_a_reason(run: RunDir) -> None:
    """A file that is missing is one that was cut to nothing."""
    (run.journal / "tcp.jsonl").unlink()
    assert any("samples of TCP" in one for one in reasons(run))


def bulk_only(directory: Path, *, mbps: int, tcp_until_s: float) -> tuple[RunDir, Plan]:
    """Six seconds of a bulk transfer over 50 Mbit/s that carries so much; TCP is sampled up to a moment."""
    state = msgspec.structs.replace(PLAN.link["a_to_b"], rate_bps=50_000_000)
    plan = msgspec.structs.replace(
        PLAN, link={"a_to_b": state, "b_to_a": state}, changes=(), bursts=(), requests=(), agents=(),
        bulk=(BulkTransfer(t_ns=0, source="a1", sink="b1", size_bytes=10**9),),
    )  # fmt: skip
    run = RunDir(directory)
    note(run, "bench", "start", ns(0))
    note(run, "bench", "end", ns(6), reason="complete")
    note(run, "others", "bulk", ns(0), source="a1", sink="b1", flows=1, size_bytes=10**9, t_end_ns=None)
    for tick in range(61):
        for direction in plan.link:
            note(
                run, "link", "link", ns(tick / 10), direction=direction, rate_bps=50_000_000, delay_ns=1,
                jitter_ns=0, loss_ratio=0.0, tx_bytes=tick * mbps * 12_500 if direction == "a_to_b" else 0,
                drops=0, backlog_bytes=0, lost_packets=0, flight_packets=0,
            )  # fmt: skip
        if tick % 10 == 1 and tick / 10 < tcp_until_s:
            note(
                run, "tcp", "tcp", ns(tick / 10), host="a1", local="x:1", remote="y:2", use="bulk",
                cwnd_packets=1, rtt_ns=S, bytes_acked=tick, bytes_retrans=0, delivery_bps=1,
                notsent_bytes=0, congestion_control="cubic",
            )  # fmt: skip
    return run, plan


@pytest.mark.parametrize(
    ("mbps", "tcp_until_s", "told"),
    [(48, 6, False), (48, 3, True), (48, 0, True), (1, 0, False)],
)
def test_a_bulk_transfer_that_filled_the_link_was_sampled(
    tmp_path: Path, *, mbps: int, tcp_until_s: float, told: bool
) -> None:
    """One that could not move, as the link was down, has no samples and needs none."""
    run, plan = bulk_only(tmp_path / "run", mbps=mbps, tcp_until_s=tcp_until_s)
    assert any("samples of TCP" in one for one in reasons(run, plan)) == told


def test_idle_connections_need_no_samples(run: RunDir) -> None:
    """Between transfers there is none, however long it takes."""
    tables = record.build(run, PLAN)
    carried = tables["transfers"].filter(pl.col("wan") & (pl.col("use") == "kv"))
    last_s = max(end_s for end_s in carried["end_s"] if end_s is not None)
    tables["tcp"] = tables["tcp"].filter(pl.col("t_s") < last_s + 1)
    assert all("TCP" not in one.what for one in audit.judge(PLAN, tables))


def test_a_run_that_was_broken_off_may_end_anywhere(tmp_path: Path) -> None:
    """That it did not end is said, and enough."""
    run = write_run(tmp_path / "run", PLAN, tcp_lines=64, finished=False)
    keep(run, "link", -1, 20)
    assert all("samples" not in reason for reason in reasons(run))
