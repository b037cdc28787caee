"""Netlink: questions of several at once, what counters are in an answer, and read-back without decoding."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from testbed import namespaces
from testbed.plan import LinkState
from testbed.shaping import link, netlink
from testbed.shaping.link import WanDirection
from testbed.shaping.netlink import GET_LINK, GET_QDISC, GET_ROUTE, Device, Question, attribute

LINK, ROUTE, QDISC = struct.Struct("=BxHiII"), struct.Struct("=8BI"), bytes(20)
KIND, OPTIONS, STATS, XSTATS, STATS2 = 1, 2, 3, 4, 7


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every namespace is the one of the test."""
    monkeypatch.setattr(namespaces, "entered", lambda _: nullcontext())
    ports = set(netlink.OWN_PORTS)
    yield
    netlink.OWN_PORTS.clear()
    netlink.OWN_PORTS.update(ports)


def qdisc(limit: int, sent: int, *, number: int = 0) -> bytes:
    """What the kernel answers about a queue, laid out as net/sched/sch_api.c `tc_fill_qdisc` does."""
    options, counted = struct.pack("=I", limit), struct.pack("=Q", sent)
    body = QDISC + attribute(KIND, b"bfifo\0") + attribute(OPTIONS, options)
    body += attribute(STATS2, attribute(1, counted)) + attribute(STATS, counted) + attribute(XSTATS, counted)
    return netlink.HEADER.pack(netlink.HEADER.size + len(body), netlink.NEW_QDISC, 0, number, 4321) + body


@pytest.mark.usefixtures("here")
def test_several_questions_are_answered_at_once() -> None:
    """Of this machine's loopback: there, not there, and all routes, each at its place."""
    loopback = Device("", "lo")
    there, missing = (Question(GET_LINK, LINK.pack(0, 0, index, 0, 0)) for index in (loopback.index, 999_999))
    every = Question(GET_ROUTE, ROUTE.pack(socket.AF_INET, *[0] * 7, 0), every=True)
    for _ in range(2):
        found = loopback.answers([there, missing, there, every])
        names = [netlink.split(answer, netlink.HEADER.size + LINK.size)[3] for answer in found[0]]
        assert names == [b"lo\0"]
        assert found[1] == []
        assert len(found[2]) == 1
        assert {netlink.HEADER.unpack_from(route)[1] for route in found[3]} <= {netlink.NEW_ROUTE}
    assert loopback.answers([]) == []
    loopback._line.close()


@pytest.mark.usefixtures("here")
def test_a_refused_dump_is_an_error() -> None:
    """An empty answer would read as: there is none."""
    loopback = Device("", "lo")
    with pytest.raises(OSError, match="not supported"):
        loopback.answers([Question(1000, bytes(20), every=True)])
    loopback._line.close()


def test_counters_are_no_settings() -> None:
    """Equal but for counters, header included; another limit is another setting."""
    one, later = qdisc(5, 0), qdisc(5, 10**9, number=3)
    assert one != later
    assert netlink.without_counters(GET_QDISC, one) == netlink.without_counters(GET_QDISC, later)
    assert netlink.without_counters(GET_QDISC, one) != netlink.without_counters(GET_QDISC, qdisc(6, 0))
    assert attribute(OPTIONS, struct.pack("=I", 5)) in netlink.without_counters(GET_QDISC, later)
    assert netlink.without_counters(GET_LINK, later) == later[netlink.HEADER.size :]


class Kernel:
    """Stands in for a device: answers with what it has."""

    def __init__(self, *place: str) -> None:
        self.namespace, self.name = place
        self.limit, self.sent = 0, 0

    def answers(self, questions: Sequence[Question]) -> list[list[bytes]]:
        self.sent += 1
        return [[qdisc(self.limit, self.sent)] if self.limit else [] for _ in questions]


class Limit:
    """A part with one setting, which counts how often it is decoded."""

    questions = (Question(GET_QDISC, b""),)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.written: dict[str, Any] = {}
        self.decoded = 0

    def apply(self, state: LinkState) -> bool:
        self._kernel.limit, self.written = state.buffer_bytes, {"limit": state.buffer_bytes}
        return True

    def found(self, answers: Sequence[Sequence[bytes]]) -> dict[str, Any]:
        self.decoded += 1
        ((answer,),) = answers or ((),)
        options = netlink.split(answer, netlink.HEADER.size + len(QDISC))[OPTIONS]
        return {"limit": struct.unpack("=I", options)[0]}


def test_only_what_has_changed_is_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as nothing but counters differs from what was right; a difference is named every time."""
    monkeypatch.setattr(link, "Device", Kernel)
    direction = WanDirection(
        "a_to_b", ("a", "one"), ("wan", "two"), ("sw", "three"),
        largest_packet_bytes=9000, mtu_bytes=1500, hosts=(), delay_tables={},
    )  # fmt: skip
    kernel = Kernel("a", "one")
    part = Limit(kernel)
    direction._parts, direction._on = {"rate": part}, {kernel: ("rate",)}  # type: ignore[dict-item]
    part.apply(LinkState(rate_bps=10**9, buffer_bytes=7, delay_ns=0))
    for _ in range(3):
        assert direction.verify() == []
    assert part.decoded == 1
    kernel.limit = 8
    for _ in range(2):
        (problem,) = direction.verify()
        assert (problem.where, problem.found) == ("link a_to_b: rate: limit", "kernel says 8")
    kernel.limit = 7
    assert direction.verify() == []
    assert part.decoded == 3
