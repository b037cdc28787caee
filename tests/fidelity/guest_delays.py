"""Runs in a guest: how long single datagrams take, on an idle link, behind a full buffer, over ten hops."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from guest_bench import MS, STAMP, Datagrams, Results, link, until
from guest_wan import Wan
from pyroute2.iproute import IPRoute

from testbed import namespaces
from testbed.shaping.delay import DelayStage
from testbed.shaping.netlink import Device

HOPS, HOP_DELAY_NS = 10, 10 * MS
FRAME_BYTES = 9014
HEADERS_BYTES = 14 + 20 + 8
SPACING_S = 0.002


class SizedDatagrams(Datagrams):
    """Numbered datagrams of a size of their own."""

    def __init__(self, wan: Wan, frame_bytes: int) -> None:
        super().__init__("tenant-a", "tenant-b", wan.address)
        self._padding = bytes(frame_bytes - HEADERS_BYTES - STAMP.size)

    def send(self, count: int = 1) -> None:
        for _ in range(count):
            self._source.send(STAMP.pack(self.sent, time.monotonic_ns()) + self._padding)
            self.sent += 1

    def _read(self) -> None:
        while True:
            try:
                data = self._sink.recv(STAMP.size)
            except BlockingIOError:
                return
            self.arrived.append((*STAMP.unpack(data), time.monotonic_ns()))

    def forget(self) -> None:
        """Count from 0."""
        self.arrived.clear()
        self.sent = 0


async def one_way(wan: Wan, cells: list[tuple[int, int]], count: int) -> Results:
    """Delays of datagrams that find the link idle. Cells are (bits per second, RTT in ms)."""
    found = []
    for rate_bps, rtt_ms in cells:
        delay_ns = rtt_ms * 500_000
        await wan.set(link(rate_bps, 10, delay_ns))
        datagrams = SizedDatagrams(wan, 64)
        await datagrams.warm_up()
        for _ in range(count):
            datagrams.send()
            await asyncio.sleep(SPACING_S)
        await wan.drained()
        datagrams.close()
        found.append(
            {
                "rate_bps": rate_bps,
                "rtt_ms": rtt_ms,
                "sent": count,
                "delay_ns": delay_ns,
                "delays_ns": datagrams.delays_ns,
            }
        )
    return {"delays": found}


async def full_buffer(wan: Wan, cells: list[tuple[int, float]]) -> Results:
    """The longest that a datagram waited when far more than the buffer holds came at once.

    Cells are (bits per second, buffer in ms).
    """
    found = []
    for rate_bps, buffer_ms in cells:
        state = link(rate_bps, buffer_ms, MS)
        await wan.set(state)
        datagrams = SizedDatagrams(wan, FRAME_BYTES)
        await datagrams.warm_up()
        datagrams.send()
        await wan.drained()
        (idle_ns,) = datagrams.delays_ns
        datagrams.forget()
        drops = wan.read().drops
        datagrams.send(round(state.buffer_bytes / FRAME_BYTES * 1.2) + 100)
        await wan.drained()
        datagrams.close()
        found.append(
            {
                "rate_bps": rate_bps,
                "buffer_bytes": state.buffer_bytes,
                "idle_ns": idle_ns,
                "longest_ns": max(datagrams.delays_ns),
                "drops": wan.read().drops - drops,
            }
        )
    return {"buffers": found}


async def nested(_wan: Wan) -> Results:
    """One-way delay over a chain of namespaces with a delay of its own on each link."""
    address = await asyncio.get_running_loop().run_in_executor(None, _chain)
    datagrams = Datagrams("hop0", f"hop{HOPS}", address)
    await datagrams.warm_up()
    for _ in range(20):
        datagrams.send()
        await asyncio.sleep(SPACING_S)
    await until(lambda: len(datagrams.arrived) == datagrams.sent)
    datagrams.close()
    return {
        "hops": HOPS,
        "hop_delay_ns": HOP_DELAY_NS,
        "sent": datagrams.sent,
        "delays_ns": datagrams.delays_ns,
    }


def _chain() -> str:
    """hop0 to hop10, each link with netem at its near end; returns the far end's address."""
    sockets: list[Any] = []
    for number in range(HOPS + 1):
        namespaces.create(f"hop{number}")
        with namespaces.entered(f"hop{number}"):
            sockets.append(IPRoute())
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
    for number in range(HOPS):
        near, far = sockets[number], sockets[number + 1]
        place = str(namespaces.NETNS_DIR / f"hop{number + 1}")
        near.link("add", ifname="next", kind="veth", peer={"ifname": "back", "net_ns_fd": place})
        for netlink, name, host in ((near, "next", 1), (far, "back", 2)):
            index = netlink.link_lookup(ifname=name)[0]
            netlink.addr("add", index=index, address=f"10.8.{number}.{host}", prefixlen=24)
            netlink.link("set", index=index, state="up")
        if number < HOPS - 1:
            near.route("add", dst=f"10.8.{HOPS - 1}.0/24", gateway=f"10.8.{number}.2")
        stage = DelayStage(Device(f"hop{number}", "next"), {})
        stage.seed = number + 1
        stage.apply(link(10**10, 10, HOP_DELAY_NS))
    return f"10.8.{HOPS - 1}.2"
