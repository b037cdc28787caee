"""From a pcap file to its summary: scapy reads the file and names what is rare.

TCP and UDP over IPv4 are taken apart here, by their fixed headers: scapy needs a tenth of a millisecond
for a packet, and a second of a full link has a hundred thousand.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
from scapy.error import Scapy_Exception
from scapy.layers.l2 import Ether
from scapy.packet import NoPayload, Packet, Padding, Raw
from scapy.utils import RawPcapReader

from testbed.capture import summary
from testbed.capture.flows import ACK, SYN, Conversation, Segment, Side
from testbed.rundir import RunDir

LIMIT_PACKETS = 2_000_000
"""Of one file: twenty seconds."""
FILE_HEADER_BYTES, PACKET_HEADER_BYTES = 24, 16
LINK_BYTES, IP_BYTES, UDP_BYTES, TCP_BYTES = 14, 20, 8, 20
_IPV4 = b"\x08\x00"
_IP = struct.Struct(">BBH4xxB2x4s4s")
_PORTS, _TCP = struct.Struct(">HH"), struct.Struct(">HHIIBB")
_FRAGMENT_OFFSET = 0x1FFF
Key = tuple[int, bytes, int, bytes, int]
"""Protocol, source address and port, sink address and port."""


class _TooShortError(Exception):
    """The packet ends within its headers."""


class _Flows:
    """All conversations of a file."""

    def __init__(self) -> None:
        self._now: dict[Key, Conversation] = {}
        self.all: list[tuple[Key, Conversation]] = []

    def see(self, key: Key, segment: Segment) -> None:
        """The next packet, in order of time."""
        protocol, source, source_port, sink, sink_port = key
        turned: Key = (protocol, sink, sink_port, source, source_port)
        found = self._now.get(key)
        if found is not None and not found.is_another(segment):
            found.see(segment, there=True)
            return
        back = self._now.get(turned)
        if back is not None and segment.flags & (SYN | ACK) != SYN:
            back.see(segment, there=False)
            return
        self._now.pop(turned, None)
        # an answer whose question was not seen was still asked by the other side
        there = segment.flags & (SYN | ACK) != SYN | ACK
        opened = Conversation(segment.t_ns, segment.t_ns)
        self._now[key if there else turned] = opened
        self.all.append((key if there else turned, opened))
        opened.see(segment, there=there)


def summarize(run: RunDir, events: pl.DataFrame) -> summary.Summary:
    """All captures that began; `events` of the record tie their clock to t0."""
    zeros = summary.zeros_ns(events)
    return summary.Summary(
        files=tuple(read(run.pcap / f"{device}.pcap", zero_ns) for device, zero_ns in zeros)
    )


def read(path: Path, zero_ns: int, limit_packets: int = LIMIT_PACKETS) -> summary.File:
    """One file; times of its flows count from `zero_ns`. A file that is cut off counts up to there."""
    flows, others = _Flows(), Counter[str]()
    packets = too_short = 0
    problem = ""
    try:
        with path.open("rb") as opened, RawPcapReader(opened) as reader:  # type: ignore[arg-type]
            scale = 1 if reader.nano else 1000
            left_bytes = path.stat().st_size - FILE_HEADER_BYTES
            for data, meta in reader:
                left_bytes -= PACKET_HEADER_BYTES + meta.caplen
                if packets == limit_packets:
                    problem = f"only the first {limit_packets} packets were read"
                    break
                if left_bytes < 0:
                    break
                packets += 1
                try:
                    dissected = _dissect(data, meta.wirelen, meta.sec * 10**9 + meta.usec * scale)
                except _TooShortError:
                    too_short += 1
                    continue
                if dissected is None:
                    others[_name(data)] += 1
                else:
                    flows.see(*dissected)
            if not problem and left_bytes:
                problem = "the file ends within a packet"
    except (OSError, Scapy_Exception, EOFError) as error:
        problem = " ".join(str(error).split()) or "not a pcap file"
    return summary.File(
        device=path.stem,
        packets=packets,
        limit_packets=limit_packets,
        complete=not problem,
        problem=problem,
        too_short_packets=too_short,
        others=dict(sorted(others.items())),
        flows=tuple(_flow(key, conversation, zero_ns) for key, conversation in flows.all),
    )


def _dissect(data: bytes, wire_bytes: int, t_ns: int) -> tuple[Key, Segment] | None:
    """Key and segment; None for what is not TCP or UDP over IPv4, or a later fragment of it."""
    if len(data) < LINK_BYTES:
        raise _TooShortError
    if data[12:14] != _IPV4:
        return None
    if len(data) < LINK_BYTES + IP_BYTES:
        raise _TooShortError
    version, tos, total_bytes, protocol, source, sink = _IP.unpack_from(data, LINK_BYTES)
    fragment = struct.unpack_from(">H", data, LINK_BYTES + 6)[0] & _FRAGMENT_OFFSET
    if protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP) or fragment:
        return None
    header_bytes = (version & 0xF) * 4
    at = LINK_BYTES + header_bytes
    # a super-packet of more than 65,535 bytes says 0 (kernel: iph_set_totlen)
    ip_bytes = total_bytes or wire_bytes - LINK_BYTES
    if protocol == socket.IPPROTO_UDP:
        if len(data) < at + _PORTS.size:
            raise _TooShortError
        source_port, sink_port = _PORTS.unpack_from(data, at)
        payload_bytes = ip_bytes - header_bytes - UDP_BYTES
        segment = Segment(t_ns, wire_bytes, tos & 3, payload_bytes)
    else:
        if len(data) < at + _TCP.size:
            raise _TooShortError
        source_port, sink_port, seq, ack, offset, flags = _TCP.unpack_from(data, at)
        payload_bytes = ip_bytes - header_bytes - (offset >> 4) * 4
        segment = Segment(t_ns, wire_bytes, tos & 3, payload_bytes, flags, seq, ack)
    return (protocol, source, source_port, sink, sink_port), segment


def _name(data: bytes) -> str:
    """What scapy calls the innermost protocol that it knows."""
    name, layer = "", cast(Packet, Ether(data))
    while not isinstance(layer, NoPayload | Raw | Padding):
        name, layer = str(layer.name), layer.payload
    return name


def _flow(key: Key, conversation: Conversation, zero_ns: int) -> summary.Flow:
    protocol, source, source_port, sink, sink_port = key
    handshake_ns = conversation.handshake_ns
    return summary.Flow(
        protocol="TCP" if protocol == socket.IPPROTO_TCP else "UDP",
        source=f"{socket.inet_ntoa(source)}:{source_port}",
        sink=f"{socket.inet_ntoa(sink)}:{sink_port}",
        first_s=(conversation.first_ns - zero_ns) / 1e9,
        last_s=(conversation.last_ns - zero_ns) / 1e9,
        handshake_s=None if handshake_ns is None else handshake_ns / 1e9,
        there=_side(conversation.there),
        back=_side(conversation.back),
    )


def _side(side: Side) -> summary.Side:
    rtt = None
    if side.rtts_ns:
        low, middle, high = (float(value) / 1e9 for value in np.percentile(side.rtts_ns, (0, 50, 99)))
        rtt = summary.Rtt(samples=len(side.rtts_ns), min_s=low, median_s=middle, p99_s=high)
    return summary.Side(
        packets=side.packets,
        bytes=side.bytes,
        payload_bytes=side.payload_bytes,
        retransmitted_packets=side.retransmitted_packets,
        retransmitted_bytes=side.retransmitted_bytes,
        late_bytes=side.late_bytes,
        ect_packets=side.ect_packets,
        ce_packets=side.ce_packets,
        ece_packets=side.ece_packets,
        cwr_packets=side.cwr_packets,
        rtt=rtt,
    )
