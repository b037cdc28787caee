"""The summary of a capture, on pcap files that scapy wrote: what is in them is known to the byte."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.utils import PcapWriter

from testbed.capture import pcap, tcpdump
from testbed.capture.flows import ACK, Segment, Sequence, Side
from testbed.capture.summary import File, Summary, table
from testbed.errors import MachineError
from testbed.plan import Capture
from testbed.report import captures
from testbed.rundir import RunDir

A, B = "10.1.0.1", "10.2.0.1"
ZERO_S = 1_735_689_600
MS = 0.001
START = 4_294_967_000
"""First sequence number of A: it wraps within the first kilobytes."""


def frame(*, there: bool, flags: str, seq: int, ack: int = 0, length: int = 0, tos: int = 0) -> Packet:
    """TCP between A:40000 and B:7000."""
    addresses, ports = ((A, B), (40000, 7000)) if there else ((B, A), (7000, 40000))
    layers = Ether() / IP(src=addresses[0], dst=addresses[1], tos=tos)
    return layers / TCP(sport=ports[0], dport=ports[1], flags=flags, seq=seq, ack=ack) / Raw(b"x" * length)


def data(offset: int, length: int, tos: int = 0) -> Packet:
    """From A, `offset` bytes behind the first."""
    return frame(there=True, seq=(START + 1 + offset) % 2**32, ack=1, flags="A", length=length, tos=tos)


def ack(offset: int, flags: str = "A") -> Packet:
    """From B, for all of A's bytes before `offset`."""
    return frame(there=False, seq=1, ack=(START + 1 + offset) % 2**32, flags=flags)


HANDSHAKE = [
    (0.0, frame(there=True, seq=START, flags="S")),
    (10 * MS, frame(there=False, seq=0, ack=START + 1, flags="SA")),
    (12 * MS, frame(there=True, seq=START + 1, ack=1, flags="A")),
]


def written(path: Path, packets: list[tuple[float, Packet]], snap: int = 262_144) -> Path:
    """A pcap file as tcpdump writes it: ns, the first `snap` bytes of each packet."""
    with PcapWriter(str(path), linktype=1, nano=True, sync=True) as writer:
        writer.write_header(None)
        for t_s, packet in packets:
            raw = bytes(packet)
            writer.write_packet(
                raw[:snap], sec=ZERO_S, usec=round(t_s * 1e9), caplen=min(snap, len(raw)), wirelen=len(raw)
            )
    return path


def summarized(path: Path) -> File:
    return pcap.read(path, ZERO_S * 10**9)


def test_a_connection_is_one_flow_in_both_directions(tmp_path: Path) -> None:
    """Packets, bytes with headers, payload, first and last moment are those that were written."""
    packets = [*HANDSHAKE, (20 * MS, data(0, 1000)), (30 * MS, ack(1000)), (31 * MS, data(1000, 500))]
    file = summarized(written(tmp_path / "x.pcap", packets))
    (flow,) = file.flows
    assert (flow.protocol, flow.source, flow.sink) == ("TCP", f"{A}:40000", f"{B}:7000")
    assert (flow.there.packets, flow.back.packets) == (4, 2)
    assert flow.bytes == sum(len(bytes(packet)) for _, packet in packets)
    assert (flow.there.payload_bytes, flow.back.payload_bytes) == (1500, 0)
    assert (flow.first_s, flow.last_s) == (0.0, 0.031)
    assert (file.complete, file.packets, file.others) == (True, 6, {})


def test_a_handshake_is_a_whole_round_trip(tmp_path: Path) -> None:
    """SYN to the acknowledgement of its answer, to the nanosecond; not known when the SYN was sent twice."""
    (flow,) = summarized(written(tmp_path / "x.pcap", HANDSHAKE)).flows
    assert flow.handshake_s == 0.012
    again = [(0.0, HANDSHAKE[0][1]), *((t_s + 1, packet) for t_s, packet in HANDSHAKE)]
    later = [(t_s * 0.5, packet) for t_s, packet in again]
    (flow,) = summarized(written(tmp_path / "y.pcap", later)).flows
    assert flow.handshake_s is None
    assert flow.there.retransmitted_packets == 1


def test_round_trips_are_those_from_data_to_acknowledgement(tmp_path: Path) -> None:
    """One sample for each acknowledgement, from the newest segment that it covers, in both directions."""
    packets = [
        *HANDSHAKE,
        (20 * MS, data(0, 1000)),
        (21 * MS, data(1000, 1000)),
        (26 * MS, ack(2000)),
        (30 * MS, data(2000, 1000)),
        (37 * MS, ack(3000)),
        (38 * MS, ack(3000)),
    ]
    (flow,) = summarized(written(tmp_path / "x.pcap", packets)).flows
    rtt = flow.there.rtt
    assert rtt is not None
    assert (rtt.samples, rtt.min_s, rtt.median_s) == (3, 0.005, 0.007)  # the third is the SYN's: 10 ms
    assert 0.0099 < rtt.p99_s <= 0.01
    assert flow.back.rtt is not None
    assert (flow.back.rtt.samples, flow.back.rtt.min_s) == (1, 0.002)


def test_what_is_seen_again_is_a_retransmission(tmp_path: Path) -> None:
    """Its bytes count once more, overlaps only where they overlap, and no round trip is taken from it."""
    packets = [
        *HANDSHAKE,
        (20 * MS, data(0, 1000)),
        (21 * MS, data(1000, 1000)),
        (320 * MS, data(0, 1000)),
        (321 * MS, data(1500, 1000)),
        (330 * MS, ack(2500)),
    ]
    (flow,) = summarized(written(tmp_path / "x.pcap", packets)).flows
    assert (flow.there.retransmitted_packets, flow.there.retransmitted_bytes) == (2, 1500)
    assert flow.there.late_bytes == 0
    assert flow.there.rtt is not None
    assert flow.there.rtt.samples == 1  # that of the SYN


def test_what_was_lost_before_this_point_is_late(tmp_path: Path) -> None:
    """Bytes that fill a hole are no retransmission here, but void the round trips that wait for them."""
    packets = [
        *HANDSHAKE,
        (20 * MS, data(0, 1000)),
        (22 * MS, data(2000, 1000)),
        (23 * MS, data(1000, 1000)),
        (40 * MS, ack(3000)),
    ]
    (flow,) = summarized(written(tmp_path / "x.pcap", packets)).flows
    assert (flow.there.retransmitted_bytes, flow.there.late_bytes) == (0, 1000)
    assert flow.there.rtt is not None
    assert flow.there.rtt.samples == 1


def test_marks_are_counted(tmp_path: Path) -> None:
    """ECT and CE in the IP header, ECE and CWR in TCP's, but not those of a SYN, which only ask."""
    packets = [
        (0.0, frame(there=True, seq=START, flags="SEC", tos=2)),
        (1 * MS, frame(there=False, seq=0, ack=START + 1, flags="SAE")),
        (2 * MS, data(0, 100, tos=2)),
        (3 * MS, data(100, 100, tos=3)),
        (4 * MS, ack(200, flags="AE")),
        (5 * MS, frame(there=True, seq=START + 201, ack=1, flags="AC", length=100, tos=1)),
    ]
    (flow,) = summarized(written(tmp_path / "x.pcap", packets)).flows
    assert (flow.there.ect_packets, flow.there.ce_packets) == (3, 1)
    assert (flow.there.cwr_packets, flow.back.ece_packets) == (1, 1)


def test_ports_that_are_used_again_make_another_flow(tmp_path: Path) -> None:
    """A SYN with another number opens a connection of its own; the old one's numbers do not count."""
    fresh = [
        (1.0 * MS + 0.5, frame(there=True, seq=77, flags="S")),
        (2.0 * MS + 0.5, frame(there=False, seq=500, ack=78, flags="SA")),
        (3.0 * MS + 0.5, frame(there=True, seq=78, ack=501, flags="A", length=10)),
    ]
    old = [*HANDSHAKE, (20 * MS, data(0, 1000))]
    file = summarized(written(tmp_path / "x.pcap", [*old, *fresh]))
    assert [flow.there.payload_bytes for flow in file.flows] == [1000, 10]
    assert [flow.there.retransmitted_bytes for flow in file.flows] == [0, 0]


def test_the_answer_alone_still_tells_who_opened(tmp_path: Path) -> None:
    """A capture that begins with the SYN/ACK calls its receiver the source."""
    (flow,) = summarized(written(tmp_path / "x.pcap", HANDSHAKE[1:])).flows
    assert (flow.source, flow.there.packets, flow.handshake_s) == (f"{A}:40000", 1, None)


def test_udp_and_the_rest_are_told_apart(tmp_path: Path) -> None:
    """UDP is a flow without sequence numbers; what is neither has the name that scapy gives it."""
    packets: list[tuple[float, Packet]] = [
        (0.0, Ether() / IP(src=A, dst=B) / UDP(sport=5, dport=6) / Raw(b"x" * 70)),
        (0.5 * MS, Ether() / IP(src=A, dst=B) / UDP(sport=5, dport=6) / Raw(b"x" * 30)),
        (1.0 * MS, Ether() / IP(src=B, dst=A) / UDP(sport=6, dport=5) / Raw(b"x" * 50)),
        (2.0 * MS, Ether() / ARP()),
        (3.0 * MS, Ether() / IP(src=A, dst=B) / ICMP()),
        (4.0 * MS, Ether() / ARP()),
    ]
    file = summarized(written(tmp_path / "x.pcap", packets))
    (flow,) = file.flows
    assert (flow.protocol, flow.there.payload_bytes, flow.back.payload_bytes) == ("UDP", 100, 50)
    assert (flow.there.rtt, flow.handshake_s, flow.retransmitted_bytes, flow.late_bytes) == (None, None, 0, 0)
    assert file.others == {"ARP": 2, "ICMP": 1}


def test_a_short_snap_length_changes_nothing(tmp_path: Path) -> None:
    """54 bytes of each packet hold all that is counted; with fewer, packets are said to be cut."""
    packets = [*HANDSHAKE, (20 * MS, data(0, 1000)), (30 * MS, ack(1000))]
    whole = summarized(written(tmp_path / "x.pcap", packets))
    cut = summarized(written(tmp_path / "x.pcap", packets, snap=54))
    assert cut == whole
    short = summarized(written(tmp_path / "x.pcap", packets, snap=40))
    assert (short.too_short_packets, short.flows, short.complete) == (5, (), True)


def test_a_super_packet_has_its_size_on_the_wire(tmp_path: Path) -> None:
    """Above 65,535 bytes the IP header says 0; the size is that of the record."""
    segment = Ether() / IP(src=A, dst=B, len=0) / TCP(sport=1, dport=2, flags="A")
    path = tmp_path / "x.pcap"
    with PcapWriter(str(path), linktype=1, nano=True, sync=True) as writer:
        writer.write_header(None)
        writer.write_packet(bytes(segment), sec=ZERO_S, usec=0, caplen=54, wirelen=184_014)
    (flow,) = summarized(path).flows
    assert flow.there.payload_bytes == 184_014 - 14 - 20 - 20


def test_an_empty_capture_is_complete(tmp_path: Path) -> None:
    """A file with a header and no packet is what an idle interface gives."""
    file = summarized(written(tmp_path / "x.pcap", []))
    assert (file.complete, file.packets, file.flows) == (True, 0, ())
    assert "0 packets" in table(file)


@pytest.mark.parametrize("keep", [0, 10, 24 + 16 + 30, 24 + 16 + 54 + 7])
def test_a_file_that_is_cut_off_says_so(tmp_path: Path, keep: int) -> None:
    """Wherever it ends: the whole packets before that count, and the summary is not complete."""
    path = written(tmp_path / "x.pcap", HANDSHAKE)
    path.write_bytes(path.read_bytes()[:keep])
    file = summarized(path)
    assert not file.complete
    assert file.problem
    assert file.packets == max(0, (keep - 24) // (16 + 54))
    assert not summarized(tmp_path / "absent.pcap").complete


def test_more_packets_than_the_limit_are_not_read(tmp_path: Path) -> None:
    """And the summary says how many were."""
    path = written(tmp_path / "x.pcap", HANDSHAKE)
    file = pcap.read(path, 0, limit_packets=2)
    assert (file.packets, file.complete) == (2, False)
    assert "first 2 packets" in table(file)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=60))
def test_every_byte_is_new_late_or_seen_again(pieces: list[tuple[int, int]]) -> None:
    """Whatever the order: the three add up, and each agrees with a set of bytes, across the wrap."""
    sequence, seen = Sequence(), {0}
    first = 2**32 - 30
    sequence.see(sequence.position(first), 1)
    for start, length in pieces:
        piece = set(range(1 + start, 1 + start + length))
        newest = max(seen)
        position = sequence.position((first + 1 + start) % 2**32)
        assert position == 1 + start
        again, late = sequence.see(position, position + length)
        assert again == len(piece & seen)
        assert late == len({byte for byte in piece - seen if byte <= newest})
        seen |= piece
        assert sequence.end == max(seen) + 1


def test_an_acknowledgement_of_nothing_measures_nothing() -> None:
    """A side that has sent no data has no round trips."""
    side = Side()
    assert side.acknowledged(Segment(5, 54, 0, flags=ACK, ack=1)) is None
    assert side.rtts_ns == []


def test_the_summary_of_a_run_counts_from_t0(tmp_path: Path) -> None:
    """The journal's line ties the packets' clock to t0; JSON, text and report say the same."""
    run = RunDir(tmp_path)
    run.pcap.mkdir()
    written(run.pcap / "edge-a-wan.pcap", [*HANDSHAKE, (20 * MS, data(0, 1000))])
    # tcpdump listened 0.5 s before t0, and t0 is 1 s after the first packet
    detail = f'{{"device":"edge-a-wan","realtime_ns":{ZERO_S * 10**9 + 500_000_000}}}'
    events = pl.DataFrame({
        "t_s": [-0.5, 0.0], "kind": ["capture", "start"], "name": ["edge-a-wan", "start"],
        "detail": [detail, ""],
    })  # fmt: skip
    pcap.summarize(run, events).write(run.pcap)
    summary = Summary.read(run.pcap)
    assert summary is not None
    (flow,) = summary.files[0].flows
    assert (flow.first_s, flow.last_s) == (-1.0, -0.98)
    text = (run.pcap / "summary.txt").read_text(encoding="utf-8")
    assert "4 packets in 1 flows" in text
    assert f"TCP {A}:40000 > {B}:7000" in text
    page = captures.section(run)
    assert page is not None
    assert f"{A}:40000 → {B}:7000" in page
    assert captures.section(RunDir(tmp_path / "another")) is None


def test_a_machine_without_tcpdump_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4 and the package's name, and only for a scenario that captures."""
    monkeypatch.setattr(tcpdump, "PATH", "/nowhere")
    tcpdump.require([])
    with pytest.raises(MachineError) as caught:
        tcpdump.require([Capture(node="edge-a", device="edge-a-wan", snap_bytes=96, filter="")])
    assert caught.value.exit_code == 4
    assert "tcpdump" in str(caught.value.problems[0])
