"""TCP_INFO of one socket: what the kernel knows of a connection. Layout: include/uapi/linux/tcp.h."""

from __future__ import annotations

import socket
import struct

import msgspec

_SIZE_BYTES = 232
_UNSET_MIN_RTT = 2**32 - 1


class TcpInfo(msgspec.Struct, frozen=True):
    """The fields the scheduler's signals need; the counters run since the connection began."""

    rtt_s: float
    min_rtt_s: float
    bytes_acked: int
    bytes_retrans: int
    busy_s: float
    """How long the connection has had something to send, or to be acknowledged."""


def received_bytes(connection: socket.socket) -> int:
    """What has come so far, whether it was read or not."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE_BYTES)
    return int(struct.unpack_from("=Q", raw, 128)[0])


def read(connection: socket.socket) -> TcpInfo:
    """One getsockopt call."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE_BYTES)
    (rtt_us,) = struct.unpack_from("=I", raw, 68)
    (bytes_acked,) = struct.unpack_from("=Q", raw, 120)
    (min_rtt_us,) = struct.unpack_from("=I", raw, 148)
    (busy_us,) = struct.unpack_from("=Q", raw, 168)
    (bytes_retrans,) = struct.unpack_from("=Q", raw, 208)
    known = min_rtt_us not in (0, _UNSET_MIN_RTT)
    min_rtt_s = min_rtt_us / 1e6 if known else 0.0
    return TcpInfo(rtt_us / 1e6, min_rtt_s, bytes_acked, bytes_retrans, busy_us / 1e6)
