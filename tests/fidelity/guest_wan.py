"""Runs in a guest: a WAN with any number of hosts, TCP streams with a window of a chosen size."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from guest_bench import Bench, until

from agents.transport.payload import PAGES_BYTES, synthetic_pages
from testbed import namespaces
from testbed.plan import DIRECTIONS
from testbed.shaping import distributions
from testbed.shaping.link import SUPER_PACKET_BYTES, WanDirection
from testbed.telemetry.link import LinkCounters
from testbed.topology import Network
from topologies import TOPOLOGIES

WINDOW_BYTES = 1 << 30
LARGEST_BUFFER_BYTES = (1 << 30) - 1
"""SO_RCVBUFFORCE doubles what it is given, in 32 bits."""
SCRATCH_BYTES = 32 << 20
TCP_WINDOW_CLAMP, SO_RCVBUFFORCE, SO_SNDBUFFORCE, SO_MAX_PACING_RATE = 10, 33, 32, 47
_scratch = memoryview(mmap.mmap(-1, SCRATCH_BYTES))


class Wan(Bench):
    """A bench with as many hosts as wanted, windows of up to a gigabyte, and offloads as wanted."""

    def __init__(
        self,
        mtu_bytes: int,
        *,
        hosts: int = 1,
        offload: Literal["auto", "on", "off"] = "auto",
        delays_ns: Sequence[int] = (),
    ) -> None:
        """`delays_ns`: the samples behind the distribution `file`, if there is to be one."""
        tables = {name: distributions.table(name) for name in distributions.CURVES}
        if delays_ns:
            tables["file"] = distributions.from_samples(delays_ns)[0]
        self.mtu_bytes = mtu_bytes
        counts = {"prefill_hosts": hosts, "pd_hosts": 1}
        self.network = Network("two_dc", counts, mtu_bytes=mtu_bytes, window_bytes=WINDOW_BYTES)
        topology = TOPOLOGIES["two_dc"]
        self.directions = {
            name: WanDirection(
                name,
                rate_stage=topology.wan[name][0],
                delay_stage=topology.wan[name][1],
                feed=topology.feed[name],
                largest_packet_bytes=SUPER_PACKET_BYTES,
                mtu_bytes=mtu_bytes,
                hosts=self.network.hosts,
                delay_tables=tables,
                offload=offload,
            )
            for name in DIRECTIONS
        }
        self.counters = LinkCounters({name: topology.wan[name] for name in DIRECTIONS})
        self.address = self.network.address("tenant-b")


def dice(*names: str | int) -> int:
    """A seed for one named use: 63 well mixed bits, as a run's own are."""
    return random.Random("/".join(map(str, names))).getrandbits(63)


def kernel_state(direction: WanDirection) -> dict[str, Any]:
    """All that the kernel says of a direction, part by part."""
    return direction.reports()


@dataclass(frozen=True)
class TcpCounters:
    """Of one connection since it was opened; layout: include/uapi/linux/tcp.h, struct tcp_info."""

    received_bytes: int
    retrans_packets: int
    data_packets: int
    """Retransmissions included."""
    left_packets: int
    """Sent and neither acknowledged nor given up."""
    notsent_bytes: int

    @classmethod
    def read(cls, connection: socket.socket) -> Self:
        """One getsockopt call."""
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        return cls(
            received_bytes=struct.unpack_from("=Q", raw, 128)[0],
            retrans_packets=struct.unpack_from("=I", raw, 100)[0],
            data_packets=struct.unpack_from("=I", raw, 156)[0],
            left_packets=struct.unpack_from("=I", raw, 24)[0],
            notsent_bytes=struct.unpack_from("=I", raw, 144)[0],
        )


class Stream:
    """A connection that always has more to send; the receiver throws it away."""

    def __init__(self, source: socket.socket, sink: socket.socket, window_bytes: int | None) -> None:
        self._source, self._sink, self._window_bytes = source, sink, window_bytes
        self._clamp()
        loop = asyncio.get_running_loop()
        loop.add_reader(sink, self._receive)
        loop.add_writer(source, self._send)

    def _send(self) -> None:
        try:
            while True:
                os.sendfile(self._source.fileno(), synthetic_pages(), 0, PAGES_BYTES)
        except BlockingIOError:
            return

    def _clamp(self) -> None:
        """Again and again: the kernel takes the clamp back when it learns the size of a packet."""
        if self._window_bytes is None:
            return
        if self._sink.getsockopt(socket.IPPROTO_TCP, TCP_WINDOW_CLAMP) != self._window_bytes:
            self._sink.setsockopt(socket.IPPROTO_TCP, TCP_WINDOW_CLAMP, self._window_bytes)

    def _receive(self) -> None:
        self._clamp()
        try:
            self._sink.recv_into(_scratch, SCRATCH_BYTES, socket.MSG_TRUNC)
        except BlockingIOError:
            return

    @property
    def received_bytes(self) -> int:
        """Payload that has arrived in order at the receiver's kernel."""
        return TcpCounters.read(self._sink).received_bytes

    def sender(self) -> TcpCounters:
        """The sender's counters."""
        return TcpCounters.read(self._source)

    async def finish(self) -> None:
        """Take on nothing new and wait until everything is acknowledged."""
        asyncio.get_running_loop().remove_writer(self._source)
        await until(lambda: not self.sender().left_packets and not self.sender().notsent_bytes)

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(self._source)
        loop.remove_reader(self._sink)
        for end in (self._source, self._sink):
            end.close()


async def open_streams(
    wan: Wan,
    count: int,
    *,
    congestion_control: str,
    window_bytes: int | None = None,
    low_water_bytes: int = 1,
    source: str = "tenant-a",
    pacing_bps: int | None = None,
) -> list[Stream]:
    """Streams from `source` to tenant-b, all opened before the first byte.

    `window_bytes`: the most that each may have under way (TCP_WINDOW_CLAMP, which holds only while the
    receive buffer does not tune itself). `low_water_bytes`: how much must be there before the receiver
    wakes; the window is smaller by as much. `pacing_bps`: the sender's own cap.
    """
    loop = asyncio.get_running_loop()
    with namespaces.entered("tenant-b"):
        listener = socket.create_server((wan.address, 0), backlog=count)
    listener.setblocking(False)
    if window_bytes is not None:  # before the handshake announces a larger one
        listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, LARGEST_BUFFER_BYTES)
        listener.setsockopt(socket.IPPROTO_TCP, TCP_WINDOW_CLAMP, window_bytes)
    ends = []
    for _ in range(count):
        with namespaces.entered(source):
            sender = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sender.setblocking(False)
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
        if pacing_bps is not None:
            sender.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", pacing_bps // 8))
        await loop.sock_connect(sender, listener.getsockname())
        receiver, _ = await loop.sock_accept(listener)
        receiver.setblocking(False)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water_bytes)
        ends.append((sender, receiver))
    listener.close()
    return [Stream(*pair, window_bytes) for pair in ends]


async def sleep_until(moment_ns: int) -> None:
    """Until a moment of CLOCK_MONOTONIC."""
    await asyncio.sleep(max(0, moment_ns - time.monotonic_ns()) / 1e9)
