"""Many numbered datagrams by one system call, each at a moment of its own.

The standard library sends and receives one at a time, at a system call each; a burst has thousands.
Layouts: struct mmsghdr, iovec and cmsghdr of 64-bit Linux (sendmmsg(2), recvmmsg(2), cmsg(3)).
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from testbed import namespaces

MOST_AT_ONCE = 1024
"""UIO_MAXIOV: what one sendmmsg takes."""
HEADERS_BYTES = 28
"""IPv4 and UDP."""
STAMP = np.dtype([("burst", "u4"), ("number", "u4")])
MIN_PACKET_BYTES = HEADERS_BYTES + STAMP.itemsize
RECEIVE_BYTES = 256 << 20
_SKB_BYTES = 1024
"""Upper bound of what a packet in a queue takes beside twice its bytes (struct sk_buff and its head)."""
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _SO_MEMINFO, _SO_TXTIME = 32, 33, 35, 55, 61
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_MEMINFO, _MEMINFO_DROPS = struct.Struct("=9I"), 8
_MMSGHDR = np.dtype([
    ("name", "u8"), ("name_bytes", "u8"), ("iov", "u8"), ("iovs", "u8"), ("control", "u8"),
    ("control_bytes", "u8"), ("flags", "u8"), ("received_bytes", "u8"),
])  # fmt: skip
_IOVEC = np.dtype([("base", "u8"), ("size", "u8")])
_TXTIME = np.dtype([("size", "u8"), ("level", "i4"), ("type", "i4"), ("t_ns", "u8")])
_STAMPED = np.dtype([("size", "u8"), ("level", "i4"), ("type", "i4"), ("s", "i8"), ("ns", "i8")])
_libc = ctypes.CDLL(None, use_errno=True)
Ints = npt.NDArray[np.int64]


def _addresses(array: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Where each element lies in memory."""
    return np.uint64(array.ctypes.data) + np.arange(len(array), dtype=np.uint64) * np.uint64(array.strides[0])


class Sender:
    """A connected UDP socket whose packets leave at given moments, if an `fq` is on their way out."""

    def __init__(self, source: str, sink: tuple[str, int], packet_bytes: int, most_waiting: int) -> None:
        """`source` is a namespace, `packet_bytes` the size of the IP packets (MIN_PACKET_BYTES or more).

        `most_waiting`: how many packets may wait for their moment.
        """
        assert packet_bytes >= MIN_PACKET_BYTES
        with namespaces.entered(source):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        room_bytes = min((most_waiting + MOST_AT_ONCE) * (packet_bytes + _SKB_BYTES), 2**30 - 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, room_bytes)
        # struct sock_txtime: fq takes moments of CLOCK_MONOTONIC only
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TXTIME, struct.pack("=iI", time.CLOCK_MONOTONIC, 0))
        # sent as they are, whatever ICMP says of their size: a burst is not cut into other packets
        self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        self._socket.connect(sink)
        self._stamps = np.zeros(MOST_AT_ONCE, STAMP)
        self._filler = np.zeros(packet_bytes - MIN_PACKET_BYTES + 1, "u1")
        self._moments = np.zeros(MOST_AT_ONCE, _TXTIME)
        self._moments["size"], self._moments["level"] = _TXTIME.itemsize, socket.SOL_SOCKET
        self._moments["type"] = _SO_TXTIME
        self._iovecs = np.zeros((MOST_AT_ONCE, 2), _IOVEC)
        self._iovecs["base"][:, 0], self._iovecs["size"][:, 0] = _addresses(self._stamps), STAMP.itemsize
        self._iovecs["base"][:, 1] = self._filler.ctypes.data
        self._iovecs["size"][:, 1] = packet_bytes - MIN_PACKET_BYTES
        self._messages = np.zeros(MOST_AT_ONCE, _MMSGHDR)
        self._messages["iov"], self._messages["iovs"] = _addresses(self._iovecs[:, 0]), 2
        self._messages["control"] = _addresses(self._moments)
        self._messages["control_bytes"] = _TXTIME.itemsize

    def send(self, burst: int, first: int, moments_ns: Ints) -> None:
        """Packets `first`, first + 1, ... of a burst, to leave at these moments (CLOCK_MONOTONIC).

        OSError when the kernel does not take them all.
        """
        count = len(moments_ns)
        self._stamps["burst"][:count] = burst
        self._stamps["number"][:count] = np.arange(first, first + count)
        self._moments["t_ns"][:count] = moments_ns
        taken = 0
        while taken < count:
            # what ICMP said of earlier packets is read away, so that it is not taken for this call's failure
            self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            at = self._messages.ctypes.data + taken * _MMSGHDR.itemsize
            more = _libc.sendmmsg(self._socket.fileno(), ctypes.c_void_p(at), count - taken, 0)
            if more <= 0:
                code = ctypes.get_errno()
                raise OSError(code, f"{taken} of {count} packets were taken: {os.strerror(code)}")
            taken += more

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _overflows(host: str) -> int:
    """Packets for which a UDP socket of the host had no room, of /proc/net/snmp."""
    with namespaces.entered(host):
        lines = Path("/proc/thread-self/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = [line.split() for line in lines if line.startswith("Udp:")]
    counters = dict(zip(names, values, strict=True))
    return int(counters["RcvbufErrors"]) + int(counters["MemErrors"])


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What came since the last look: bursts and numbers, and when (CLOCK_REALTIME, ns)."""

    burst: Ints
    number: Ints
    t_ns: Ints


class Sink:
    """A UDP socket that keeps what comes, with the kernel's time of arrival, until somebody looks."""

    def __init__(self, host: str, address: str) -> None:
        with namespaces.entered(host):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.bind((address, 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._host, self._overflows = host, _overflows(host)
        self._stamps = np.zeros(MOST_AT_ONCE, STAMP)
        self._times = np.zeros(MOST_AT_ONCE, _STAMPED)
        self._iovecs = np.zeros(MOST_AT_ONCE, _IOVEC)
        self._iovecs["base"], self._iovecs["size"] = _addresses(self._stamps), STAMP.itemsize
        self._messages = np.zeros(MOST_AT_ONCE, _MMSGHDR)
        self._messages["iov"], self._messages["iovs"] = _addresses(self._iovecs), 1
        self._messages["control"] = _addresses(self._times)

    def arrivals(self) -> Iterator[Arrivals]:
        """All that came since the last call, in parts."""
        got = MOST_AT_ONCE
        while got == MOST_AT_ONCE:
            self._messages["control_bytes"] = _STAMPED.itemsize  # the kernel writes what it used
            got = _libc.recvmmsg(
                self._socket.fileno(), ctypes.c_void_p(self._messages.ctypes.data), MOST_AT_ONCE, 0, None
            )
            if got > 0:
                stamps, times = self._stamps[:got], self._times[:got]
                yield Arrivals(
                    stamps["burst"].astype(np.int64),
                    stamps["number"].astype(np.int64),
                    times["s"] * 10**9 + times["ns"],
                )

    def overflowed_packets(self) -> int:
        """What the kernel dropped because nobody looked in time.

        The socket counts packets with a wrong checksum as dropped, too, its host counts them apart (kernel:
        net/ipv4/udp.c, `udp_queue_rcv_one_skb`).
        """
        info = self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        return min(int(_MEMINFO.unpack(info)[_MEMINFO_DROPS]), _overflows(self._host) - self._overflows)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
