"""Counters of a qdisc, from messages laid out as the kernel's."""

from __future__ import annotations

import struct

from testbed.telemetry.qdisc import Stats, stats_of

KIND, STATS2, BASIC, QUEUE, APP, PKT64 = 1, 7, 1, 3, 4, 8


def attribute(kind: int, value: bytes) -> bytes:
    padding = bytes(-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + value + padding


def message(kind: bytes, *stats: bytes) -> bytes:
    """An answer: struct nlmsghdr and tcmsg, and the two attributes that count."""
    return bytes(36) + attribute(KIND, kind + b"\0") + attribute(STATS2, b"".join(stats))


QUEUED = attribute(QUEUE, struct.pack("=5I", 3, 4500, 7, 0, 5))


def test_what_a_qdisc_has_counted() -> None:
    """Bytes, packets, queue, drops and overlimits stand where gen_stats.h has them; marks, where red has."""
    basic = attribute(BASIC, struct.pack("=QII", 10**12, 12345, 0))
    assert stats_of(message(b"netem", basic, QUEUED)) == Stats(10**12, 12345, 3, 4500, 7, 5, 0)
    red = attribute(APP, struct.pack("=4I", 1, 2, 3, 44))
    assert stats_of(message(b"red", basic, QUEUED, red)).marked == 44


def test_more_packets_than_32_bits_hold() -> None:
    """Beyond 2**32 packets the count is the one with 64 bits."""
    packets = 2**32 + 12
    basic = attribute(BASIC, struct.pack("=QII", 10**14, packets % 2**32, 0))
    long = attribute(PKT64, struct.pack("=Q", packets))
    assert stats_of(message(b"htb", basic, long, QUEUED)).tx_packets == packets
