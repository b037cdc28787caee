"""Which sockets have moved, from sock_diag messages laid out as the kernel's."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from testbed.shaping import netlink
from testbed.shaping.netlink import attribute
from testbed.telemetry import tcp
from testbed.telemetry.tcp import TcpDump

SHUTDOWN, MARK, CGROUP, INFO, CONG = 8, 15, 21, 2, 4
DONE = netlink.HEADER.pack(20, netlink.DONE, 2, 0, 0) + bytes(4)
KV, HTTP = 7001, 8000


def message(port: int, acked: int, retrans: int, *, remote: int = KV, control: bytes = b"cubic\0") -> bytes:
    """An established connection of 10.1.0.1 to 10.2.0.1 (net/ipv4/inet_diag.c, `inet_sk_diag_fill`)."""
    addresses = (socket.inet_aton(address).ljust(16, b"\0") for address in ("10.1.0.1", "10.2.0.1"))
    ends = struct.pack(">HH16s16s", port, remote, *addresses)
    info = bytearray(284)
    struct.pack_into("=I", info, 68, 11_500)
    struct.pack_into("=I", info, 80, 10)
    struct.pack_into("=Q", info, 120, acked)
    struct.pack_into("=Q", info, 208, retrans)
    body = bytes(4) + ends + bytes(72 - 4 - len(ends))
    body += attribute(SHUTDOWN, b"\0") + attribute(MARK, bytes(4)) + attribute(CGROUP, bytes(8))
    body += attribute(INFO, bytes(info)) + attribute(CONG, control)
    return netlink.HEADER.pack(netlink.HEADER.size + len(body), 20, 2, 0, 0) + body


class Kernel:
    """Stands in for a netlink socket and for the devices of a namespace."""

    def __init__(self, *_: object) -> None:
        self.sockets: list[bytes] = []
        self.passed, self.dumps = 0, 0

    def counted(self) -> bytes:
        return b"%d" % self.passed

    def send(self, _: bytes) -> None:
        self.dumps += 1

    def receive(self) -> Iterator[bytes]:
        half = len(self.sockets) // 2
        return iter([b"".join(self.sockets[:half]), b"".join(self.sockets[half:]), DONE])


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(netlink, "Line", lambda *_: made)
    monkeypatch.setattr(tcp, "Devices", lambda *_: made)
    return made


def test_only_what_has_moved_since_the_last_time(kernel: Kernel) -> None:
    """New bytes acknowledged, or sent again; a connection that has only been opened has not."""
    dump = TcpDump("a1")
    kernel.sockets = [
        message(40_001, 1, 0),
        message(40_002, 1001, 0),
        message(40_003, 1, 9, control=b"bbr\0"),
    ]
    kernel.passed = 1
    found = dump.moved()
    assert [(one.local, one.bytes_acked, one.bytes_retrans) for one in found] == [
        ("10.1.0.1:40002", 1001, 0),
        ("10.1.0.1:40003", 1, 9),
    ]
    assert [(one.remote, one.rtt_ns, one.cwnd_packets) for one in found] == [
        ("10.2.0.1:7001", 11_500_000, 10)
    ] * 2
    assert [one.congestion_control for one in found] == ["cubic", "bbr"]
    kernel.passed = 2
    assert dump.moved() == []
    kernel.sockets[1] = message(40_002, 2001, 0)
    kernel.passed = 3
    assert [one.bytes_acked for one in dump.moved()] == [2001]


def test_nobody_asks_while_nothing_passes(kernel: Kernel) -> None:
    """The devices have counted nothing since the last look: no dump."""
    dump = TcpDump("a1")
    kernel.sockets = [message(40_001, 1001, 0)]
    assert (len(dump.moved()), kernel.dumps) == (1, 1)
    kernel.sockets = [message(40_001, 2001, 0)]
    assert (dump.moved(), kernel.dumps) == ([], 1)
    kernel.passed = 1
    assert (len(dump.moved()), kernel.dumps) == (1, 2)


def test_connections_that_are_left_out(kernel: Kernel) -> None:
    """By the port of either end."""
    dump = TcpDump("a1", without={HTTP})
    kernel.sockets = [message(40_001, 9, 0, remote=HTTP), message(HTTP, 9, 0), message(40_002, 9, 0)]
    assert [one.local_port for one in dump.moved()] == [40_002]


def test_a_refused_dump_is_an_error(kernel: Kernel) -> None:
    """No sockets would read as: none has moved."""
    kernel.sockets = [
        netlink.HEADER.pack(100, netlink.ERROR, 0, 0, 0) + struct.pack("=i", -2) + bytes(80)
    ] * 2
    with pytest.raises(OSError, match="sock_diag"):
        TcpDump("a1").moved()
