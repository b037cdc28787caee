"""Runs in a guest: path MTU, black holes, and where super-packets are cut, seen by packet sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from types import TracebackType
from typing import Self

from guest_bench import MS, Bench, Results
from guest_rate_fields import FLOOD_BYTES, flood, warmed

from testbed import namespaces
from testbed.plan import LinkState, Queue
from testbed.shaping.link import SUPER_PACKET_BYTES

_ETH_P_IP, _ETHERNET_BYTES = 0x0800, 14
_RCVBUF_FORCE = 33


class Sizes:
    """The sizes of what a device receives, on the wire."""

    def __init__(self, node: str, device: str) -> None:
        with namespaces.entered(node):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
            self._socket.bind((device, _ETH_P_IP))
        self._socket.setsockopt(socket.SOL_SOCKET, _RCVBUF_FORCE, 1 << 30)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def read(self) -> list[int]:
        """All since the last reading."""
        found, scratch = [], bytearray(64)
        while True:
            try:
                size, address = self._socket.recvfrom_into(scratch, 64, socket.MSG_TRUNC)
            except BlockingIOError:
                return found
            if address[2] != socket.PACKET_OUTGOING:
                found.append(size)


def state(**more: object) -> LinkState:
    """A link of 1 Gbps, and what else it has."""
    return LinkState(rate_bps=10**9, buffer_bytes=10_000_000, delay_ns=MS, **more)  # type: ignore[arg-type]


async def cuts(bench: Bench) -> Results:
    """The largest that arrives at the edge router and at the WAN node, of TCP and of UDP super-packets."""
    found = []
    with Sizes("edge-a", "edge-a-lan") as edge, Sizes("wan", "wan-a") as wan:
        for name, one in (
            ("nothing", state()),
            ("fq_codel", state(queue=Queue(kind="fq_codel"))),
            ("duplicate", state(duplicate=1e-9)),
            ("black_hole", state(black_hole_bytes=1500)),
            ("nothing again", state()),
        ):
            await warmed(bench, one)
            largest = {}
            for kind in ("tcp", "udp"):
                edge.read()
                wan.read()
                if kind == "tcp":
                    await (await bench.start(2_000_000)).finished()
                else:
                    with flood(bench, 4 * FLOOD_BYTES):
                        await asyncio.sleep(0.01)
                await bench.drained()
                largest[kind] = {"edge": max(edge.read()), "wan": max(wan.read(), default=0)}
            found.append({"name": name, **largest})
    return {"states": found, "super_packet_bytes": SUPER_PACKET_BYTES}


def _probe(bench: Bench, source: str, sink: str, size_bytes: int) -> socket.socket:
    """One datagram of this size (of its IP packet) on its way; the socket that waits for it."""
    address = bench.network.address(sink)
    with namespaces.entered(sink):
        waiting = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    waiting.bind((address, 9200))
    waiting.setblocking(False)
    with namespaces.entered(source):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.sendto(bytes(size_bytes - 28), (address, 9200))
    return waiting


async def _arrives(bench: Bench, source: str, sink: str, size_bytes: int) -> bool:
    with _probe(bench, source, sink, size_bytes) as waiting:
        await asyncio.sleep(0.05)
        try:
            waiting.recv(1 << 16)
        except BlockingIOError:
            return False
        return True


async def path_mtus(bench: Bench) -> Results:
    """Packets of a transfer, single ones just small enough and just too large, and the other direction's."""
    found = []
    with Sizes("edge-b", "edge-b-wan") as behind:
        for mtu in (1000, 1200, None):
            one = state(path_mtu_bytes=mtu, black_hole_bytes=1500)  # the latter cuts super-packets
            await warmed(bench, one, handshake=False)
            behind.read()
            start_ns = time.monotonic_ns()
            transfer = await bench.start(2_000_000, flows=1)
            end_ns = await transfer.finished()
            await bench.drained()
            sizes = behind.read()
            largest = mtu or 1500
            found.append(
                {
                    "mtu": mtu,
                    "largest": max(sizes) - _ETHERNET_BYTES,
                    "packets": len(sizes),
                    "took_ns": end_ns - start_ns,
                    "small_arrives": await _arrives(bench, "tenant-a", "tenant-b", largest),
                    "back_arrives": await _arrives(bench, "tenant-b", "tenant-a", 1500),
                }
            )
    return {"transfers": found}


async def path_mtu_errors(bench: Bench) -> Results:
    """What the sender of too large a datagram hears, from a path that answers and from a black hole."""
    found = {}
    for name, one in (
        ("path_mtu", state(path_mtu_bytes=1000)),
        ("black_hole", state(black_hole_bytes=1000)),
    ):
        await warmed(bench, one, handshake=False)
        with namespaces.entered("tenant-a"):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sender:
            sender.connect((bench.address, 9300))
            sender.send(bytes(1001 - 28))
            await asyncio.sleep(0.05)
            try:
                sender.send(bytes(1001 - 28))
                found[name] = 0
            except OSError as error:
                found[name] = error.errno or -1
    await warmed(bench, state(), handshake=False)
    return found


async def black_holes(bench: Bench) -> Results:
    """Datagrams just small enough and just too large."""
    found = []
    for limit in (1000, 1200, None):
        await warmed(bench, state(black_hole_bytes=limit), handshake=False)
        sizes = (limit, limit + 1) if limit else (1000, 1500)
        arrives = [await _arrives(bench, "tenant-a", "tenant-b", size) for size in sizes]
        back = await _arrives(bench, "tenant-b", "tenant-a", 1500)
        found.append({"limit": limit, "arrives": arrives, "back_arrives": back})
    return {"probes": found}


CHECKS = (cuts, path_mtus, path_mtu_errors, black_holes)
