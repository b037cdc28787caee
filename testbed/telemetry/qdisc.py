"""Counters of one qdisc, by one netlink request.

pyroute2 dumps all qdiscs of a namespace through an event loop made for each call; a sample four times a
second of virtual time cannot afford that. Layouts: include/uapi/linux/rtnetlink.h, gen_stats.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from testbed import namespaces
from testbed.shaping import netlink

_GET_QDISC, _ERROR = 38, 2
_REQUEST = 0x9  # NLM_F_REQUEST, and NLM_F_ECHO: without it the kernel answers only to a multicast group
_KIND, _STATS2, _BASIC, _QUEUE, _APP, _PACKETS64 = 1, 7, 1, 3, 4, 8
_MARKED_AT = {b"red": 12, b"codel": 24, b"fq_codel": 12}
"""Where tc_red_xstats, tc_codel_xstats and, behind its type, tc_fq_codel_qd_stats count marks."""
_HEADER_BYTES, _TCMSG_BYTES, _ATTRIBUTE_BYTES = 16, 20, 4
_RECEIVE_BYTES = 8_192


@dataclass(frozen=True, slots=True)
class Stats:
    """`tx_*`, `drops` and `overlimits` are cumulative; `queue_packets` counts super-packets as one."""

    tx_bytes: int
    tx_packets: int
    queue_packets: int
    backlog_bytes: int
    drops: int
    overlimits: int
    marked: int
    """ECN marks of codel, fq_codel and red since it was made; 0 of any other."""


class QdiscStats:
    """Reads the counters of the qdisc with this handle on this device."""

    def __init__(self, namespace: str, device: str, handle: int) -> None:
        self._socket = netlink.connect(namespace)
        with namespaces.entered(namespace):
            index = socket.if_nametoindex(device)
        size = _HEADER_BYTES + _TCMSG_BYTES
        header = struct.pack("=IHHII", size, _GET_QDISC, _REQUEST, 0, 0)
        self._request = header + struct.pack("=B3xiIII", 0, index, handle, 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read(self) -> Stats:
        """One request, one answer; OSError when the qdisc is gone."""
        self._socket.send(self._request)
        data = self._socket.recv(_RECEIVE_BYTES)
        size, kind = struct.unpack_from("=IH", data)
        if kind == _ERROR:
            raise OSError(-struct.unpack_from("=i", data, _HEADER_BYTES)[0], "RTM_GETQDISC")
        return stats_of(data[:size])


def stats_of(answer: bytes) -> Stats:
    """What an RTM_NEWQDISC message says. Packets beyond 2**32 have an attribute of their own."""
    attributes = dict(_attributes(answer, _HEADER_BYTES + _TCMSG_BYTES, len(answer)))
    stats = dict(_attributes(answer, *attributes[_STATS2]))
    tx_bytes, tx_packets = struct.unpack_from("=QI", answer, stats[_BASIC][0])
    if _PACKETS64 in stats:
        (tx_packets,) = struct.unpack_from("=Q", answer, stats[_PACKETS64][0])
    queue_packets, backlog_bytes, drops, _, overlimits = struct.unpack_from("=5I", answer, stats[_QUEUE][0])
    kind = answer[slice(*attributes[_KIND])].rstrip(b"\0")
    marked = 0
    if kind in _MARKED_AT and _APP in stats:
        (marked,) = struct.unpack_from("=I", answer, stats[_APP][0] + _MARKED_AT[kind])
    return Stats(tx_bytes, tx_packets, queue_packets, backlog_bytes, drops, overlimits, marked)


def _attributes(data: bytes, at: int, end: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Type, and first and last byte of the value, of each netlink attribute in data[at:end]."""
    while at < end:
        size, kind = struct.unpack_from("=HH", data, at)
        yield kind & 0x3FFF, (at + _ATTRIBUTE_BYTES, at + size)
        at += (size + 3) & ~3
