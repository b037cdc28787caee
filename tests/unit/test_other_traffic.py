"""Other people's traffic, captures and the words for people reach the plan."""

from __future__ import annotations

import shutil

import pytest

from testbed.errors import ScenarioError
from testbed.plan import (
    Capture,
    Microbursts,
)
from tests.unit.link_plans import MS, S, planned, refused


def test_incast_is_a_burst_from_every_sender() -> None:
    """A list of senders sends at once, each the whole size."""
    background = "{from: [a1, a2], to: b1, flows: 2, burst: 4MB, every: 5s, until: 10s}"
    bursts = planned(f"timeline=[{{at: 1s, background: {background}}}]").bursts
    assert [(burst.t_ns // S, burst.source, burst.size_bytes) for burst in bursts] == [
        (1, "a1", 4_000_000), (1, "a2", 4_000_000), (6, "a1", 4_000_000), (6, "a2", 4_000_000),
    ]  # fmt: skip


def test_tenants_reach_the_plan() -> None:
    """Everything a tenant is, with a seed of its own; sizes shrink with the scale."""
    what = "flows: 8, size: 200MB, size_cv: 2, pause: 1s, congestion_control: bbr"
    spec = f"{{from: tenant-a, to: tenant-b, {what}}}"
    entries = f"timeline=[{{at: 1s, tenants: {spec}}}, {{at: 1s, tenants: {spec}}}]"
    one, other = planned(entries, scale=0.1).tenants
    assert one.seed != other.seed
    assert (one.t_ns, one.until_ns, one.flows, one.size_bytes, one.size_cv, one.pause_ns) == (
        S, 20 * S, 8, 20_000_000, 2.0, S,
    )  # fmt: skip
    assert one.congestion_control == "bbr"


def test_microbursts_reach_the_plan() -> None:
    """Everything microbursts are; rates shrink with the scale, packets do not."""
    spec = "{from: tenant-a, to: tenant-b, rate: 40gbit, packet: 1500, length: 200us, every: 10ms, until: 5s}"
    assert planned(f"timeline=[{{at: 1s, microbursts: {spec}}}]", scale=0.1).microbursts == (
        Microbursts(
            t_ns=S, until_ns=5 * S, source="tenant-a", sink="tenant-b", rate_bps=4 * 10**9,
            packet_bytes=1500, length_ns=200_000, every_ns=10 * MS,
        ),
    )  # fmt: skip


def test_microbursts_hold_a_packet_at_every_scale() -> None:
    """A burst that the scale has made shorter than one packet is refused."""
    spec = "{from: tenant-a, to: tenant-b, rate: 40gbit, length: 1us, every: 10ms}"
    assert planned(f"timeline=[{{at: 1s, microbursts: {spec}}}]", scale=0.3).microbursts
    with pytest.raises(ScenarioError, match="a burst would not hold one packet at 8gbit"):
        planned(f"timeline=[{{at: 1s, microbursts: {spec}}}]", scale=0.2)


def test_captures_have_their_interface() -> None:
    """A direction is captured at its rate stage, a host at its own interface."""
    plan = planned("capture=[{link: a_to_b, filter: tcp port 7000}, {host: b3, snap: 128B}]")
    assert plan.captures == (
        Capture(node="edge-a", device="edge-a-wan", snap_bytes=96, filter="tcp port 7000"),
        Capture(node="b3", device="b3-eth0", snap_bytes=128, filter=""),
    )


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="needs tcpdump")
def test_a_filter_that_tcpdump_refuses() -> None:
    """A filter is compiled before the run, not in it."""
    assert '"tcp prt 7000" is no filter' in refused("capture=[{link: a_to_b, filter: tcp prt 7000}]")


@pytest.mark.parametrize("text", ["host b2", "src b2", "tcp and dst host b2 or arp", "net example.com"])
def test_a_filter_that_names_hosts(text: str) -> None:
    """Names would be looked up where the scenario is checked, and not where it is run."""
    assert "names are not looked up" in refused(f"capture=[{{link: a_to_b, filter: {text}}}]")


@pytest.mark.parametrize(
    "text",
    [
        "host 10.0.0.1",
        "src net 10.0.0.0/8",
        "dst port 7001",
        "ether host aa:bb:cc:dd:ee:ff",
        "src or dst port 7",
    ],
)
def test_a_filter_that_names_none(text: str) -> None:
    """Addresses, networks, ports and MAC addresses are taken."""
    assert planned(f"capture=[{{link: a_to_b, filter: '{text}'}}]").captures[0].filter == text


def test_a_filter_fits_a_command_line() -> None:
    """4096 characters at most."""
    text = "tcp or " * 20_000 + "udp"
    assert "a filter of 140003 characters" in refused(f"capture=[{{link: a_to_b, filter: {text}}}]")


def test_without_tcpdump_filters_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking a scenario needs no tcpdump; running it with captures does."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert planned("capture=[{link: a_to_b, filter: tcp prt 7000}]").captures[0].filter == "tcp prt 7000"


def test_ends_say_what_ends() -> None:
    """What people read at the end of an entry is not what they read at its begin."""
    entries = (
        "timeline=[{at: 1s, link: both, partition: true, for: 1s}, "
        "{at: 3s, link: a_to_b, flap: {down: 1ms, up: 1s}, until: 5s}, "
        "{at: 3s, link: a_to_b, wave: {rate: 1gbit, queue: codel}, shape: square, period: 1s, until: 5s}, "
        "{at: 3s, tenants: {from: tenant-a, to: tenant-b, size: 1MB, until: 5s}}]"
    )
    details = {event.name: event.detail for event in planned(entries).events}
    assert details["partition"] == "both: nothing passes"
    assert details["partition.end"] == "both: passes again"
    assert details["flap.end"] == "a_to_b: up for good"
    assert details["wave"] == "a_to_b: swings to rate 1gbit, queue codel (square, 1s)"
    assert details["tenants.end"] == "tenant-a to tenant-b: no more"
