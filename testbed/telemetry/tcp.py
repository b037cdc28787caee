"""TCP_INFO of every sending socket of a namespace, by one sock_diag dump.

Parsed here because pyroute2 decodes all sixty fields of every socket, idle ones too, at 1 ms each.
Layouts: kernel include/uapi/linux/inet_diag.h, tcp.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from testbed import namespaces

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLMSG_DONE, _NLMSG_ERROR = 4, 20, 3, 2
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ESTABLISHED, _CLOSE_WAIT = 1, 8
_STATES = 1 << _ESTABLISHED | 1 << _CLOSE_WAIT
_DIAG_INFO, _DIAG_CONG = 2, 4
_MESSAGE_BYTES, _DIAG_BYTES = 16, 72
_RECEIVE_BYTES = 1 << 16


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
    """A sock_diag socket inside one namespace."""

    def __init__(self, namespace: str) -> None:
        with namespaces.entered(namespace):
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._socket.bind((0, 0))
        self._buffer = bytearray(_RECEIVE_BYTES)
        wanted = 1 << (_DIAG_INFO - 1) | 1 << (_DIAG_CONG - 1)
        request = struct.pack("=BBBxI48x", socket.AF_INET, socket.IPPROTO_TCP, wanted, _STATES)
        self._request = (
            struct.pack("=IHHII", _MESSAGE_BYTES + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 0, 0)
            + request
        )

    def sockets(self) -> Iterator[Socket]:
        """Every established TCP connection of the namespace."""
        self._socket.send(self._request)
        while True:
            got, at = self._socket.recv_into(self._buffer), 0
            data = self._buffer
            while at < got:
                size, kind = struct.unpack_from("=IH", data, at)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    code = -struct.unpack_from("=i", data, at + _MESSAGE_BYTES)[0]
                    raise OSError(code, "sock_diag")
                yield _parse(data, at + _MESSAGE_BYTES, at + size)
                at += (size + 3) & ~3

    def close(self) -> None:
        """Close the netlink socket."""
        self._socket.close()


def _parse(data: bytearray, at: int, end: int) -> Socket:
    """One struct inet_diag_msg and the attributes behind it."""
    local_port, remote_port = struct.unpack_from(">HH", data, at + 4)
    local, remote = (socket.inet_ntoa(data[at + start : at + start + 4]) for start in (8, 24))
    info, congestion_control = bytearray(), ""
    attribute = at + _DIAG_BYTES
    while attribute < end:
        size, kind = struct.unpack_from("=HH", data, attribute)
        value = data[attribute + 4 : attribute + size]
        if kind == _DIAG_INFO:
            info = value
        elif kind == _DIAG_CONG:
            congestion_control = bytes(value).rstrip(b"\0").decode()
        attribute += (size + 3) & ~3
    return Socket(
        local=f"{local}:{local_port}",
        remote=f"{remote}:{remote_port}",
        local_port=local_port,
        remote_port=remote_port,
        rtt_ns=struct.unpack_from("=I", info, 68)[0] * 1000,
        cwnd_packets=struct.unpack_from("=I", info, 80)[0],
        bytes_acked=struct.unpack_from("=Q", info, 120)[0],
        notsent_bytes=struct.unpack_from("=I", info, 144)[0],
        delivery_bps=struct.unpack_from("=Q", info, 160)[0] * 8,
        bytes_retrans=struct.unpack_from("=Q", info, 208)[0],
        congestion_control=congestion_control,
    )
