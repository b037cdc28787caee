"""Counters of qdiscs, all of a node's by two system calls.

pyroute2 dumps all qdiscs of a namespace through an event loop made for each call; a sample ten times a
second of virtual time cannot afford that. Layouts: include/uapi/linux/rtnetlink.h, gen_stats.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from testbed import namespaces
from testbed.shaping import netlink

_KIND, _STATS2, _BASIC, _QUEUE, _APP, _PACKETS64 = 1, 7, 1, 3, 4, 8
_MARKED_AT = {b"red": 12, b"codel": 24, b"fq_codel": 12}
"""Where tc_red_xstats, tc_codel_xstats and, behind its type, tc_fq_codel_qd_stats count marks."""


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


class Qdiscs:
    """Reads the counters of the qdiscs with these handles on these devices of a node."""

    def __init__(self, namespace: str, places: Sequence[tuple[str, int]]) -> None:
        self._line = netlink.Line(namespace)
        with namespaces.entered(namespace):
            indices = [socket.if_nametoindex(device) for device, _ in places]
        # without NLM_F_ECHO the kernel answers only to a multicast group
        self._request = b"".join(
            netlink.request(
                netlink.GET_QDISC, netlink.REQUEST | netlink.ECHO, netlink.TC.pack(0, index, handle, 0, 0)
            )
            for index, (_, handle) in zip(indices, places, strict=True)
        )
        self._answers = [b""] * len(places)
        self._stats: list[Stats | None] = [None] * len(places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def read(self) -> list[Stats | None]:
        """All of them now; None where there is no such qdisc. What says the same as before is not decoded."""
        self._line.send(self._request)
        number = 0
        while number < len(self._answers):
            for answer in self._line.receive():
                if answer != self._answers[number]:
                    self._answers[number] = answer
                    self._stats[number] = None if netlink.refusal(answer) else stats_of(answer)
                number += 1
        return list(self._stats)


def there(stats: Stats | None) -> Stats:
    """Of a qdisc that cannot be missing; OSError when it is."""
    if stats is None:
        raise FileNotFoundError("a queueing discipline of the link has gone")
    return stats


def stats_of(answer: bytes) -> Stats:
    """What an RTM_NEWQDISC message says. Packets beyond 2**32 have an attribute of their own."""
    attributes = netlink.places(answer, netlink.HEADER.size + netlink.TC.size)
    at, end = attributes[_STATS2]
    stats = netlink.places(answer[:end], at)
    tx_bytes, tx_packets = struct.unpack_from("=QI", answer, stats[_BASIC][0])
    if _PACKETS64 in stats:
        (tx_packets,) = struct.unpack_from("=Q", answer, stats[_PACKETS64][0])
    queue_packets, backlog_bytes, drops, _, overlimits = struct.unpack_from("=5I", answer, stats[_QUEUE][0])
    kind = answer[slice(*attributes[_KIND])].rstrip(b"\0")
    marked = 0
    if kind in _MARKED_AT and _APP in stats:
        (marked,) = struct.unpack_from("=I", answer, stats[_APP][0] + _MARKED_AT[kind])
    return Stats(tx_bytes, tx_packets, queue_packets, backlog_bytes, drops, overlimits, marked)
