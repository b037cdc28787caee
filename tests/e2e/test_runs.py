"""Whole runs, from the command line to the record: what they say, and that they say it again."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT, SCENARIOS, TRACES, Ended, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

TERMINAL = {"completed", "failed", "refused"}


def assert_whole(ended: Ended) -> None:
    """Every file of a result is there, and every request has exactly one terminal state."""
    for name in ("scenario.yaml", "verdict.json", "junit.xml", "report.html", "console.log"):
        assert (ended.run / name).stat().st_size > 0
    requests = ended.table("requests")
    assert requests["id"].to_list() == [request["id"] for request in ended.plan["requests"]]
    assert set(requests["state"]) <= TERMINAL
    clients = [json.loads(line) for line in (ended.run / "journal/client.jsonl").read_text().splitlines()]
    told = sorted(line["id"] for line in clients if line["kind"] == "request")
    assert told == requests["id"].to_list()
    failed = requests.filter(pl.col("state") != "completed")
    assert failed["cause"].null_count() == 0


def test_one_transfer_fills_100_gbps(tmp_path: Path) -> None:
    """full_rate.yaml passes, and its record shows 8 GiB at 96 Gbps or more in steady state."""
    ended = run(tmp_path, PROJECT / "scenarios/full_rate.yaml")
    assert ended.code == 0, ended.output
    (bulk,) = ended.table("transfers").filter(pl.col("use") == "bulk").to_dicts()
    assert (bulk["size_bytes"], bulk["state"]) == (8 << 30, "completed")
    links = ended.table("links").filter(pl.col("direction") == "a_to_b").sort("t_s")
    best = links["throughput_bps"].rolling_mean(5).max()
    assert isinstance(best, float)
    assert 96e9 < best < 100.1e9


def test_two_hundred_hosts_are_up_before_anything_is_sent(tmp_path: Path) -> None:
    """The kernel takes its time to switch so many interfaces on; the run waits, and passes."""
    hosts = ("--set", "topology.prefill_hosts=99", "--set", "topology.pd_hosts=99")
    ended = run(tmp_path, PROJECT / "scenarios/full_rate.yaml", "--no-report", *hosts)
    assert ended.code == 0, ended.output


def test_the_control_of_full_rate_fails(tmp_path: Path) -> None:
    """The same transfer over half the link cannot pass."""
    ended = run(tmp_path, PROJECT / "scenarios/full_rate.yaml", "--set", "link.a_to_b.rate=50gbit")
    assert ended.code == 1, ended.output


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """congestion.yaml in its quick form."""
    out = tmp_path_factory.mktemp("congestion")
    return run(out, PROJECT / "scenarios/congestion.yaml", "--scale", "0.1")


def test_congestion_passes(followed: Ended) -> None:
    """The bandwidth-aware policy follows the link and comes back: PASS, and every request ends."""
    assert followed.code == 0, followed.output
    assert "PASS" in followed.output
    assert_whole(followed)
    assert followed.table("requests").height > 200


def test_congestion_is_what_the_scenario_asked_for(followed: Ended) -> None:
    """While the capacity is 0.8 of 10 Gbps the link carries no more, and it loses packets only then."""
    links = followed.table("links").filter(pl.col("direction") == "a_to_b").sort("t_s")
    narrow = links.filter(pl.col("t_s").is_between(31, 74))
    carried_bps = narrow["throughput_bps"].mean()
    assert isinstance(carried_bps, float)
    assert 0.5e9 < carried_bps <= 0.8e9 * 1.001
    assert narrow["lost_packets"].sum() > 0
    outside = links.filter(pl.col("t_s") < 30)
    assert outside["lost_packets"].sum() == 0


def test_the_control_of_congestion_fails(tmp_path: Path) -> None:
    """The same trouble with a fixed threshold: FAIL, for its reaction, and still every request ends."""
    ended = run(tmp_path, PROJECT / "scenarios/congestion_static.yaml", "--scale", "0.1")
    assert ended.code == 1, ended.output
    assert_whole(ended)
    verdict = json.loads((ended.run / "verdict.json").read_bytes())
    status = {result["name"]: result["status"] for result in verdict["results"]}
    assert "FAIL" in [one for name, one in status.items() if "threshold_tokens" in name]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Ended]:
    """The same small scenario, in two places."""
    one, two = (
        run(tmp_path_factory.mktemp(name), SCENARIOS / "small.yaml") for name in ("here", "somewhere_else")
    )
    return one, two


def test_the_same_seed_gives_the_same_record(twice: tuple[Ended, Ended]) -> None:
    """Loss, jitter, other tenants and all: two runs agree in every byte of every table."""
    one, two = twice
    assert (one.code, two.code) == (0, 0), one.output + two.output
    assert one.manifest["record_digest"] == two.manifest["record_digest"]
    for table in sorted((one.run / "record").iterdir()):
        assert table.read_bytes() == (two.run / "record" / table.name).read_bytes()
    assert_whole(one)


def test_determinism_is_verified_on_request(tmp_path: Path) -> None:
    """Run twice with everything a bad line does, tenants and a capture: the same tables, the same packets."""
    ended = run(
        tmp_path,
        PROJECT / "scenarios/links/impairments.yaml",
        "--verify-determinism",
        "--set",
        "capture=[{link: a_to_b}]",
        "--set",
        "timeline=[{at: 0s, tenants: {from: tenant-a, to: tenant-b, flows: 2, size: 1MB, size_cv: 1,"
        " pause: 50ms, until: 2s}}]",
    )
    assert ended.code == 0, ended.output
    assert f"the same, byte for byte: {tmp_path}" in ended.output
    assert (ended.run / "pcap/edge-a-wan.pcap").stat().st_size > 100_000


def test_a_small_run_has_everything_in_it(twice: tuple[Ended, Ended]) -> None:
    """Verified chunks over the WAN and within DC B, packets lost and sent again, and bursts of tenants."""
    one, _ = twice
    transfers = one.table("transfers")
    kv = transfers.filter(pl.col("use") == "kv")
    assert set(kv["wan"]) == {True, False}
    assert set(kv["state"]) == {"completed"}
    assert all(chunks > 10 for chunks in kv["chunks"])
    assert transfers.filter(pl.col("use") == "tenant").height == 4
    links = one.table("links")
    for direction, at_least in (("a_to_b", 5), ("b_to_a", 1)):
        lost = links.filter(pl.col("direction") == direction)["lost_packets"]
        assert lost.sum() >= at_least
    assert one.table("tcp")["bytes_retrans"].sum() > 0


def test_another_seed_gives_another_record(twice: tuple[Ended, Ended], tmp_path: Path) -> None:
    """With another seed the same scenario passes, with other numbers."""
    other = run(tmp_path, SCENARIOS / "small.yaml", "--seed", "6")
    assert other.code == 0, other.output
    assert other.manifest["seed"] == 6
    assert other.manifest["record_digest"] != twice[0].manifest["record_digest"]


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    """Each line of a Mooncake trace becomes a request of that length, at its time, and ends."""
    ended = run(tmp_path, SCENARIOS / "replay.yaml", "--traces", TRACES)
    assert ended.code == 0, ended.output
    assert_whole(ended)
    lines = [json.loads(line) for line in (TRACES / "conversation.jsonl").read_text().splitlines()]
    requests = ended.table("requests").sort("id")
    assert requests["input_tokens"].to_list() == [line["input_length"] for line in lines]
    assert requests["tokens"].to_list() == [line["output_length"] for line in lines]
    for sent_s, line in zip(requests["sent_s"], lines, strict=True):
        # asyncio and select each round a wait up to the next millisecond; its own calls take the rest
        assert 0 <= sent_s - line["timestamp"] / 2000 < 0.0025
