"""Other people's traffic in the guest's kernel: tenants, incast, microbursts, against arithmetic.

`guest_traffic.py` measures, in one boot; here stands what must come out.
"""

from __future__ import annotations

import json
import math
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scapy.utils import RawPcapReader

from testbed.kernel.uml import Uml
from tests.kernel.booting import run_in_guest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

SIGMAS = 5
ETHERNET_BYTES = 14
SUPER_PACKET_BYTES = 184_000
CLOCK_NS = 1024
"""The guest's clock moves in steps of so many ns."""
FRAME_SHARE = 0.97
"""Payload of a frame that is as long as MTU 9000 allows, and more than that."""
TCPI_OPT_ECN = 8
BURSTS = ("slow", "fast", "small")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Boot a guest and let it measure."""
    directory = tmp_path_factory.mktemp("traffic") / "run"
    run_in_guest(directory, "guest_traffic.py", wall_limit_s=240)
    return directory


@pytest.fixture(scope="module")
def found(run: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((run / "results.json").read_text(encoding="utf-8"))
    return results


def departures(run: Path, name: str, packets: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """When each packet of each burst passed the edge router's LAN port; the opening packet is left out."""
    with RawPcapReader(str(run / name / "edge-a-lan.pcap")) as reader:
        times = [meta.sec * 10**9 + meta.usec for _, meta in reader][1:]
    return np.split(np.array(times), range(packets, len(times), packets))


def test_a_tenant_sends_the_sizes_that_it_draws(found: dict[str, Any]) -> None:
    """Their mean is the asked one, and the mean of their logarithms the lognormal's, within 5 sigma."""
    sizes = [line["size_bytes"] for line in found["tenants"]["lines"]]
    assert len(sizes) > 1000
    variance = math.log(2)
    assert fmean(sizes) == pytest.approx(4e6, abs=SIGMAS * 4e6 / math.sqrt(len(sizes)))
    assert fmean(map(math.log, sizes)) == pytest.approx(
        math.log(4e6) - variance / 2, abs=SIGMAS * math.sqrt(variance / len(sizes))
    )


def test_a_tenant_is_on_and_off(found: dict[str, Any]) -> None:
    """Its flows work at once, pause for 100 ms on average, and are all idle at times."""
    tenants = found["tenants"]
    assert max(tenants["busy"]) == 8
    assert min(tenants["busy"]) == 0
    working_ns = sum((line["t_end_ns"] or tenants["end_ns"]) - line["t_ns"] for line in tenants["lines"])
    pauses = len(tenants["lines"]) - 8
    paused_ns = 8 * (tenants["end_ns"] - tenants["start_ns"]) - working_ns
    assert paused_ns / pauses == pytest.approx(1e8, rel=SIGMAS / math.sqrt(pauses))


def test_a_tenant_ends_when_its_time_is_over(found: dict[str, Any]) -> None:
    """Nothing goes on after the end, what was on its way is partial, everything else arrived whole."""
    tenants = found["tenants"]
    assert tenants["end_ns"] - tenants["start_ns"] < 30.1e9
    for line in tenants["lines"]:
        whole = line["received_bytes"] == line["size_bytes"]
        assert (line["state"], line["cause"] is None) == (
            ("completed", True) if whole else ("partial", False)
        )
    assert sum(line["state"] == "partial" for line in tenants["lines"]) in range(1, 9)


def test_congestion_control_is_that_of_the_kernel(found: dict[str, Any]) -> None:
    """A tenant's sockets have the one that was asked for; dctcp holds at both ends, which agreed on ECN."""
    assert found["tenants"]["controls"] == ["bbr"]
    for end in found["dctcp"]["ends"]:
        assert end["congestion_control"] == "dctcp"
        assert end["options"] & TCPI_OPT_ECN


def test_tenants_take_their_share(found: dict[str, Any]) -> None:
    """Eight BBR flows beside a bulk transfer fill the link to 1 %, and both get some of it."""
    sharing = found["sharing"]
    assert sharing["link_bytes"] * 8 / sharing["seconds"] == pytest.approx(1e9, rel=0.01)
    theirs = [line["received_bytes"] for line in sharing["lines"]]
    assert len(theirs) == 8
    assert min(theirs) > 0
    both = sum(theirs) + sharing["bulk_bytes"]
    assert FRAME_SHARE * sharing["link_bytes"] < both < sharing["link_bytes"] * 1.01
    assert sharing["bulk_bytes"] > 0.01 * both


def test_the_link_is_the_cap_whoever_sends(found: dict[str, Any]) -> None:
    """Four senders that could each fill it nine times over get the link's rate together, and a full queue."""
    incast = found["incast"]
    assert incast["alone_bps"] > 9e9
    sum_bps = sum(incast["got_bytes"]) * 8 / incast["seconds"]
    assert FRAME_SHARE * 1e9 < sum_bps < 1e9
    assert min(incast["got_bytes"]) > 0
    assert incast["buffer_bytes"] - 2 * SUPER_PACKET_BYTES < incast["most_bytes"] <= incast["buffer_bytes"]
    assert incast["drops"] > 0


@pytest.mark.parametrize("name", BURSTS)
def test_microbursts_are_of_the_asked_shape(run: Path, found: dict[str, Any], name: str) -> None:
    """Packets, their size, the rate within each burst (2 %) and the period are as asked."""
    asked = found["bursts"][name]
    frame_bytes = asked["packet_bytes"] + ETHERNET_BYTES
    packets = asked["rate_bps"] * asked["length_ns"] // (frame_bytes * 8 * 10**9)
    assert [line["sent_packets"] for line in asked["lines"]] == [packets] * 50
    assert [line["t_ns"] for line in asked["lines"]] == [
        asked["first_ns"] + number * asked["every_ns"] for number in range(50)
    ]
    with RawPcapReader(str(run / name / "edge-a-lan.pcap")) as reader:
        assert {meta.wirelen for _, meta in reader} == {frame_bytes}
    bursts = departures(run, name, packets)
    assert len(bursts) == 50
    gap_ns = frame_bytes * 8e9 / asked["rate_bps"]
    for number, burst in enumerate(bursts):
        whole_ns = burst[-1] - burst[0]
        assert whole_ns == pytest.approx((packets - 1) * gap_ns, rel=0.02, abs=CLOCK_NS)
        ideal = burst[0] + np.arange(packets) * gap_ns
        assert abs(burst - ideal).max() <= 2 * CLOCK_NS
        assert burst[0] - bursts[0][0] == pytest.approx(number * asked["every_ns"], abs=CLOCK_NS)


@pytest.mark.parametrize("name", BURSTS)
def test_microbursts_that_fit_arrive(found: dict[str, Any], name: str) -> None:
    """On a link that is fast enough every packet comes, a delay later, as fast as it was sent."""
    asked = found["bursts"][name]
    assert asked["distrusted"] == []
    for line in asked["lines"]:
        assert line["received_packets"] == line["sent_packets"]
        assert line["waited"]
        assert line["t_first_ns"] - line["t_ns"] == pytest.approx(1_000_000, abs=10_000)
        assert line["t_end_ns"] - line["t_first_ns"] == pytest.approx(asked["length_ns"], rel=0.1)


def test_microbursts_overflow_a_buffer_by_arithmetic(found: dict[str, Any]) -> None:
    """What arrives is what the buffer holds and what drained meanwhile, to the rate stage's bucket."""
    asked = found["bursts"]["overflow"]
    assert asked["distrusted"] == []
    assert len(asked["lines"]) == 2
    held_bytes = asked["buffer_bytes"] + asked["link_bps"] * asked["length_ns"] / 8e9
    for line in asked["lines"]:
        got_bytes = line["received_packets"] * (line["packet_bytes"] + ETHERNET_BYTES)
        assert -2 * 1514 < got_bytes - held_bytes < 2 * SUPER_PACKET_BYTES + 2 * 1514
        assert line["sent_packets"] * 1514 > 1.9 * held_bytes


def test_tcpdump_counts_what_it_wrote(run: Path, found: dict[str, Any]) -> None:
    """Its own count is that of the packets in the file: all bursts and the packet that opens them."""
    for name, asked in found["bursts"].items():
        with RawPcapReader(str(run / name / "edge-a-lan.pcap")) as reader:
            packets = sum(1 for _ in reader)
        (_, captured) = asked["capture"]
        assert (captured["packets"], captured["dropped_packets"]) == (packets, 0)
        assert packets == 1 + sum(line["sent_packets"] for line in asked["lines"])


def test_a_journal_line_stands_for_each_transfer(found: dict[str, Any]) -> None:
    """A flow's next transfer starts only after its last one ended: never more than eight at once."""
    moments = sorted(
        (t_ns, change)
        for line in found["tenants"]["lines"]
        for t_ns, change in ((line["t_ns"], 1), (line["t_end_ns"] or found["tenants"]["end_ns"], -1))
    )
    at_once, most = 0, 0
    for _, changes in groupby(moments, key=lambda moment: moment[0]):
        at_once += sum(change for _, change in changes)
        most = max(most, at_once)
    assert most == 8
