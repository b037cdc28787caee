"""TCP_INFO of the sending sockets of a namespace that have moved, by one sock_diag dump.

Parsed here because pyroute2 decodes all sixty fields of every socket, idle ones too, at 1 ms each. Of those
that have not moved only two counters are looked at. Layouts: kernel include/uapi/linux/inet_diag.h, tcp.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

from testbed.shaping import netlink
from testbed.telemetry.devices import Devices

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_ESTABLISHED, _CLOSE_WAIT = 1, 8
_STATES = 1 << _ESTABLISHED | 1 << _CLOSE_WAIT
_DIAG_INFO, _DIAG_CONG = 2, 4
_ATTRIBUTES_AT, _PORTS, _LOCAL, _REMOTE = 88, struct.Struct(">HH"), slice(4, 8), slice(20, 24)
"""In a message, what follows struct inet_diag_msg; in struct inet_diag_sockid, ports and addresses."""
_ACKED_AT, _RETRANS_AT = 120, 208
_OPENED = (1, 0)
"""What has moved once a socket is connected: its SYN was acknowledged."""


@dataclass(frozen=True, slots=True)
class Socket:
    """One connection; counters run since it was opened."""

    local: str
    remote: str
    local_port: int
    remote_port: int
    cwnd_packets: int
    rtt_ns: int
    bytes_acked: int
    bytes_retrans: int
    delivery_bps: int
    notsent_bytes: int
    congestion_control: str


class TcpDump:
    """A sock_diag socket inside one namespace; connections from or to a port of `without` are left out."""

    def __init__(self, namespace: str, without: Collection[int] = ()) -> None:
        self._line = netlink.Line(namespace, _NETLINK_SOCK_DIAG)
        self._devices = Devices(namespace)
        self._without = without
        self._device_counters = b""
        self._seen: dict[bytes, tuple[int, int]] = {}
        self._info_at, self._info_header = 0, -1
        self._glance = struct.Struct("=IH14x36sIQQ")
        """Size, kind, ends, header of struct tcp_info, two counters (the first answer shows where)."""
        wanted = 1 << (_DIAG_INFO - 1) | 1 << (_DIAG_CONG - 1)
        body = struct.pack("=BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, wanted, _STATES)
        self._request = netlink.request(_SOCK_DIAG_BY_FAMILY, netlink.REQUEST | netlink.DUMP, body)

    def moved(self) -> list[Socket]:
        """The established connections whose acknowledged or repeated bytes are not those of the last call.

        None can have moved if nothing has come or gone since the last call began.
        """
        before, self._device_counters = self._device_counters, self._devices.counted()
        if self._device_counters == before:
            return []
        found: list[Socket] = []
        more = True
        self._line.send(self._request)
        while more:
            for data in self._line.receive():
                more = self._look(data, found)
        return found

    def _look(self, data: bytes, found: list[Socket]) -> bool:
        """Add to `found` what has moved in a part of the dump; says whether there is more."""
        at = 0
        while at + self._glance.size <= len(data):
            size, kind, ends, header, acked, retrans = self._glance.unpack_from(data, at)
            if kind in (netlink.ERROR, netlink.DONE):
                break
            if header != self._info_header:  # of one kernel, all sockets have it at the same place
                self._find_info(data[at : at + size])
                continue
            moved = self._seen.get(ends, _OPENED) != (acked, retrans)
            if moved and not any(port in self._without for port in _PORTS.unpack_from(ends)):
                self._seen[ends] = acked, retrans
                found.append(_parse(ends, data[at : at + size], self._info_at))
            at += (size + 3) & ~3
        code = netlink.refusal(data[at:]) if at < len(data) else 0
        if code:
            raise OSError(code, "sock_diag")
        return at == len(data)

    def _find_info(self, answer: bytes) -> None:
        """Look for struct tcp_info, and make what reads only the counters of a message."""
        at, end = netlink.places(answer, _ATTRIBUTES_AT)[_DIAG_INFO]
        self._info_at, self._info_header = at, end - at + netlink.ATTRIBUTE_BYTES | _DIAG_INFO << 16
        between = _RETRANS_AT - _ACKED_AT - 8
        self._glance = struct.Struct(f"=IH14x36s{at - 60}xI{_ACKED_AT}xQ{between}xQ")


def _parse(ends: bytes, answer: bytes, info: int) -> Socket:
    """`info`: where struct tcp_info begins."""
    local_port, remote_port = _PORTS.unpack_from(ends)
    local, remote = socket.inet_ntoa(ends[_LOCAL]), socket.inet_ntoa(ends[_REMOTE])
    name = netlink.split(answer, _ATTRIBUTES_AT).get(_DIAG_CONG, b"")
    return Socket(
        local=f"{local}:{local_port}",
        remote=f"{remote}:{remote_port}",
        local_port=local_port,
        remote_port=remote_port,
        rtt_ns=struct.unpack_from("=I", answer, info + 68)[0] * 1000,
        cwnd_packets=struct.unpack_from("=I", answer, info + 80)[0],
        bytes_acked=struct.unpack_from("=Q", answer, info + _ACKED_AT)[0],
        notsent_bytes=struct.unpack_from("=I", answer, info + 144)[0],
        delivery_bps=struct.unpack_from("=Q", answer, info + 160)[0] * 8,
        bytes_retrans=struct.unpack_from("=Q", answer, info + _RETRANS_AT)[0],
        congestion_control=name.rstrip(b"\0").decode(),
    )
