"""Runs in a guest: two datacenters with a tenant each, real traffic and numbered datagrams between them."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Literal

from pyroute2.iproute import IPRoute

from testbed import namespaces, traffic
from testbed.plan import DIRECTIONS, Direction, LinkState
from testbed.shaping import distributions
from testbed.shaping.link import SUPER_PACKET_BYTES, WanDirection
from testbed.telemetry.link import Counters, LinkCounters
from testbed.topology import Network
from topologies import TOPOLOGIES

WINDOW_BYTES = 256 << 20
MS = 1_000_000
UDP_PORT = 9000
BUFFERS_BYTES = 256 << 20
STAMP = struct.Struct("=Qq")
Results = dict[str, Any]


def link(rate_bps: int, buffer_ms: float, delay_ns: int, jitter_ns: int = 0, **more: Any) -> LinkState:
    """A state with its buffer in milliseconds of its rate."""
    buffer_bytes = round(rate_bps * buffer_ms / 8000)
    return LinkState(
        rate_bps=rate_bps, buffer_bytes=buffer_bytes, delay_ns=delay_ns, jitter_ns=jitter_ns, **more
    )


async def until(condition: Callable[[], bool]) -> None:
    """Look every 10 virtual milliseconds."""
    while not condition():  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0.01)


class Bench:
    """Two datacenters with a tenant each, as `inside` builds them."""

    def __init__(
        self,
        mtu_bytes: int,
        prefill_hosts: int = 1,
        *,
        offload: Literal["auto", "on", "off"] = "auto",
        ecn: bool = False,
    ) -> None:
        self.mtu_bytes, self.offload = mtu_bytes, offload
        hosts = {"prefill_hosts": prefill_hosts, "pd_hosts": 1}
        self.network = Network("two_dc", hosts, mtu_bytes=mtu_bytes, window_bytes=WINDOW_BYTES, ecn=ecn)
        self.directions = {name: self._direction(name) for name in DIRECTIONS}
        wan = TOPOLOGIES["two_dc"].wan
        self.counters = LinkCounters({name: wan[name] for name in DIRECTIONS})
        self.address = self.network.address("tenant-b")

    def _direction(self, name: Direction) -> WanDirection:
        rate_stage, delay_stage = TOPOLOGIES["two_dc"].wan[name]
        return WanDirection(
            name,
            rate_stage,
            delay_stage,
            TOPOLOGIES["two_dc"].feed[name],
            largest_packet_bytes=SUPER_PACKET_BYTES,
            mtu_bytes=self.mtu_bytes,
            hosts=self.network.hosts,
            delay_tables={curve: distributions.table(curve) for curve in distributions.CURVES},
            offload=self.offload,
        )

    async def dump(self, node: str, device: str) -> list[dict[str, Any]]:
        """What pyroute2 says of all qdiscs of a device."""

        def qdiscs() -> list[dict[str, Any]]:
            with namespaces.entered(node), IPRoute() as netlink:
                index = netlink.link_lookup(ifname=device)[0]
                return [
                    {
                        "handle": one["handle"],
                        **{
                            part: dict(one.get_nested("TCA_STATS2", f"TCA_STATS_{part.upper()}"))
                            for part in ("basic", "queue")
                        },
                    }
                    for one in netlink.get_qdiscs(index=index)
                ]

        return await asyncio.get_running_loop().run_in_executor(None, qdiscs)

    async def set(self, state: LinkState, back: LinkState | None = None, seed: int = 1) -> None:
        """Both directions; `back` is that from B to A, if it differs."""
        await self.directions["a_to_b"].set(state, seed)
        await self.directions["b_to_a"].set(back or state, seed + 1)

    def read(self, direction: Direction = "a_to_b") -> Counters:
        return self.counters.read()[direction]

    async def start(
        self, size_bytes: int, flows: int = 4, congestion_control: str = "cubic"
    ) -> traffic.Transfer:
        """Real traffic from tenant to tenant."""
        return await traffic.start(
            "tenant-a",
            ("tenant-b", self.address),
            flows=flows,
            size_bytes=size_bytes,
            congestion_control=congestion_control,
        )

    async def handshake_ns(self) -> int:
        """One round trip on an otherwise new connection."""
        transfer = await self.start(1, flows=1)
        await transfer.finished()
        return transfer.handshake_ns

    async def drained(self) -> None:
        """Wait until nothing is under way any more."""
        await until(
            lambda: (
                not any(
                    self.read(name).backlog_bytes or self.read(name).flight_packets for name in DIRECTIONS
                )
            )
        )


class Datagrams:
    """Numbered datagrams from one tenant to the other, and when each arrived."""

    def __init__(self, source: str, sink: str, address: str) -> None:
        self.arrived: list[tuple[int, int, int]] = []
        with namespaces.entered(source):
            self._source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with namespaces.entered(sink):
            self._sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._source.setsockopt(socket.SOL_SOCKET, 32, BUFFERS_BYTES)  # SO_SNDBUFFORCE
        self._sink.setsockopt(socket.SOL_SOCKET, 33, BUFFERS_BYTES)  # SO_RCVBUFFORCE
        self._sink.bind((address, UDP_PORT))
        self._sink.setblocking(False)
        self._source.connect((address, UDP_PORT))
        self.sent = 0
        asyncio.get_running_loop().add_reader(self._sink, self._read)

    def _read(self) -> None:
        while True:
            try:
                data = self._sink.recv(64)
            except BlockingIOError:
                return
            self.arrived.append((*STAMP.unpack(data), time.monotonic_ns()))

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self._source.send(STAMP.pack(self.sent, time.monotonic_ns()))
            self.sent += 1

    async def warm_up(self) -> None:
        """Have all addresses on the way resolved, then count from 0."""
        self.send()
        await until(lambda: bool(self.arrived))
        self.arrived.clear()
        self.sent = 0

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sink)
        self._sink.close()
        self._source.close()

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.arrived]

    @property
    def delays_ns(self) -> list[int]:
        return [end - start for _, start, end in self.arrived]


async def sampled(bench: Bench, seconds: float, interval_s: float) -> list[tuple[int, int, int, int]]:
    """Time (ns), bytes sent, queue (bytes), drops of the rate stage from A to B."""
    samples = []
    end_ns = time.monotonic_ns() + round(seconds * 1e9)
    while time.monotonic_ns() < end_ns:
        now = bench.read()
        samples.append((time.monotonic_ns(), now.tx_bytes, now.backlog_bytes, now.drops))
        await asyncio.sleep(interval_s)
    return samples
