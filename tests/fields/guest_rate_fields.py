"""Runs in a guest: rate, buffer, what manages it, token bucket and the cap of a flow, measured under load."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import asdict

import msgspec
from guest_bench import MS, Bench, Results, link, sampled
from guest_delay_fields import FRAME_BYTES, Train

from testbed import namespaces
from testbed.plan import LinkState, Queue, TokenBucket
from testbed.shaping.link import BUFFER
from testbed.telemetry.qdisc import Qdiscs, there

PACKET_BYTES, PIECES = 1514, 44
"""On the wire; packets in a super-packet."""
FLOOD_BYTES = PACKET_BYTES * PIECES
_SEGMENT, _SNDBUF_FORCE = 103, 32
DATAGRAM_NS = 100_000


def flood(bench: Bench, size_bytes: int, port: int = 9100) -> socket.socket:
    """As many full packets of UDP as make up `size_bytes`, in super-packets, all at once; nobody listens.

    Returns the socket that keeps the kernel from answering.
    """
    with namespaces.entered("tenant-b"):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((bench.address, port))
    with namespaces.entered("tenant-a"):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with source:
        source.setsockopt(socket.SOL_SOCKET, _SNDBUF_FORCE, 256 << 20)
        source.setsockopt(socket.SOL_UDP, _SEGMENT, PACKET_BYTES - 42)
        source.connect((bench.address, port))
        for _ in range(size_bytes // FLOOD_BYTES):
            source.send(bytes((PACKET_BYTES - 42) * PIECES))
    return sink


async def warmed(bench: Bench, state: LinkState, *, handshake: bool = True) -> None:
    """Set the state and have all addresses on the way resolved."""
    await bench.set(state, link(10**10, 100, state.delay_ns))
    if handshake:
        await bench.handshake_ns()
    await bench.drained()


async def rates(bench: Bench) -> Results:
    """Bytes that left while the queue was full, at two rates."""
    found = []
    for rate_bps in (10**9, 2 * 10**9):
        await warmed(bench, LinkState(rate_bps=rate_bps, buffer_bytes=10**8, delay_ns=MS))
        with flood(bench, 40_000_000):
            found.append({"rate_bps": rate_bps, "samples": await sampled(bench, 0.1, 0.01)})
            await bench.drained()
    return {"loads": found}


async def buffers(bench: Bench) -> Results:
    """What stays of a flood in two buffers."""
    found = []
    for buffer_bytes in (1_000_000, 3_000_000):
        await warmed(bench, LinkState(rate_bps=10**9, buffer_bytes=buffer_bytes, delay_ns=MS))
        with flood(bench, 10_000_000):
            found.append({"buffer_bytes": buffer_bytes, "backlog_bytes": bench.read().backlog_bytes})
            await bench.drained()
    return {"floods": found}


async def token_buckets(bench: Bench) -> Results:
    """What has left of a flood, while the budget lasts and after; and again after a rest."""
    found = []
    for sustained_bps, budget_bytes, rest_s in (
        (10**8, 10_000_000, 0.0),
        (2 * 10**8, 10_000_000, 0.0),
        (2 * 10**8, 20_000_000, 0.0),
        (2 * 10**8, 20_000_000, 0.4),
    ):
        bucket = TokenBucket(sustained_bps=sustained_bps, budget_bytes=budget_bytes)
        state = LinkState(rate_bps=10**9, buffer_bytes=10**8, delay_ns=MS, token_bucket=bucket)
        await warmed(bench, state, handshake=False)
        await asyncio.sleep(rest_s)
        start = bench.read().tx_bytes
        with flood(bench, 36_000_000):
            samples = [(at, sent - start) for at, sent, _, _ in await sampled(bench, 0.5, 0.01)]
            await bench.drained()
        found.append(
            {
                "sustained_bps": sustained_bps,
                "budget_bytes": rest_s * sustained_bps / 8 if rest_s else budget_bytes,
                "rate_bps": state.rate_bps,
                "samples": samples,
            }
        )
    return {"floods": found}


async def flow_caps(bench: Bench) -> Results:
    """Bytes per second of one flow and of many, with a cap, another cap and none."""
    found = []
    for cap_bps, flows in ((4 * 10**8, 1), (4 * 10**8, 4), (8 * 10**8, 1), (None, 1)):
        state = LinkState(rate_bps=4 * 10**9, buffer_bytes=10**8, delay_ns=MS, flow_cap_bps=cap_bps)
        await warmed(bench, state)
        transfer = await bench.start(10**10, flows=flows)
        await asyncio.sleep(0.3)
        start_ns, start = time.monotonic_ns(), bench.read()
        await asyncio.sleep(0.3)
        end_ns, end = time.monotonic_ns(), bench.read()
        transfer.stop()
        await bench.drained()
        bps = (end.tx_bytes - start.tx_bytes) * 8e9 / (end_ns - start_ns)
        found.append({"cap_bps": cap_bps, "flows": flows, "bps": bps, "drops": end.drops - start.drops})
    state = LinkState(rate_bps=4 * 10**9, buffer_bytes=10**8, delay_ns=MS, flow_cap_bps=4 * 10**8)
    await warmed(bench, state)
    with flood(bench, 30_000_000, 9101), flood(bench, 30_000_000, 9102):
        start_ns, start = time.monotonic_ns(), bench.read()
        await asyncio.sleep(0.3)
        end_ns, end = time.monotonic_ns(), bench.read()
        await bench.set(link(10**10, 100, MS))
        await bench.drained()
    datagrams_bps = (end.tx_bytes - start.tx_bytes) * 8e9 / (end_ns - start_ns)
    return {"loads": found, "cap_bps": state.flow_cap_bps, "datagrams_bps": datagrams_bps}


async def first_cap(bench: Bench) -> Results:
    """Bytes sent twice by a transfer under which the first cap is set."""
    state = LinkState(rate_bps=10**9, buffer_bytes=10**8, delay_ns=5 * MS)
    await warmed(bench, state)
    transfer = await bench.start(10**9, flows=1)
    await asyncio.sleep(0.5)
    await bench.set(msgspec.structs.replace(state, flow_cap_bps=2 * 10**8))
    await asyncio.sleep(0.3)
    info = transfer.flows[0]._source.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    transfer.stop()
    await bench.drained()
    return {"retrans_bytes": struct.unpack_from("=Q", info, 208)[0], "drops": bench.read().drops}


async def queues(bench: Bench) -> Results:
    """A newcomer's handshake, the standing queue, drops and marks under four TCP flows, for each kind."""
    found = []
    leaf = Qdiscs("edge-a", [("edge-a-wan", BUFFER)])
    red = {"min_bytes": 100_000, "max_bytes": 300_000, "probability": 0.1}
    for queue in (
        Queue(),
        Queue(kind="codel"),
        Queue(kind="codel", ecn=True),
        Queue(kind="fq_codel"),
        Queue(kind="fq_codel", ecn=True),
        Queue(kind="red", **red),
        Queue(kind="red", ecn=True, **red),
    ):
        state = LinkState(rate_bps=2 * 10**8, buffer_bytes=4_000_000, delay_ns=2 * MS, queue=queue)
        await warmed(bench, state)
        before = there(leaf.read()[0])
        transfer = await bench.start(10**9)
        await asyncio.sleep(1)
        backlogs, newcomers = [], []
        for number in range(100):
            backlogs.append(there(leaf.read()[0]).backlog_bytes)
            if number % 10 == 0:
                newcomers.append(await bench.handshake_ns())
            await asyncio.sleep(0.01)
        after = there(leaf.read()[0])
        transfer.stop()
        await bench.drained()
        found.append(
            {
                "kind": queue.kind,
                "ecn": queue.ecn,
                "backlogs": backlogs,
                "newcomers_ns": newcomers,
                "drops": after.drops - before.drops,
                "marked": after.marked - before.marked,
                "sent_bytes": after.tx_bytes - before.tx_bytes,
                "stats": asdict(after),
            }
        )
    return {"loads": found}


def _slow(queue: Queue) -> LinkState:
    """A link on which a datagram takes DATAGRAM_NS."""
    rate_bps = FRAME_BYTES * 8 * 10**9 // DATAGRAM_NS
    return LinkState(rate_bps=rate_bps, buffer_bytes=30_000_000, delay_ns=5 * MS, queue=queue)


async def codels(bench: Bench) -> Results:
    """Who arrived of a burst that waits longer and longer."""
    found = []
    async with Train(bench) as train:
        for kind, target_ns, interval_ns in (
            ("codel", 5 * MS, 100 * MS),
            ("codel", 20 * MS, 100 * MS),
            ("codel", 5 * MS, 50 * MS),
            ("fq_codel", 5 * MS, 50 * MS),
            ("fq_codel", 20 * MS, 50 * MS),
        ):
            queue = Queue(kind=kind, target_ns=target_ns, interval_ns=interval_ns)  # type: ignore[arg-type]
            measured = await train.burst(_slow(queue), 2_000)
            numbers = {"sent": measured["sent"], "numbers": measured["numbers"]}
            found.append({"target_ns": target_ns, "interval_ns": interval_ns, **numbers})
    return {"bursts": found, "datagram_ns": DATAGRAM_NS}


async def reds(bench: Bench) -> Results:
    """Who arrived of a burst that fills the queue of RED, one parameter changed at a time."""
    found = []
    base = {"min_bytes": 30_000, "max_bytes": 90_000, "probability": 0.02}
    async with Train(bench) as train:
        for other in ({}, {"min_bytes": 60_000}, {"max_bytes": 60_000}, {"probability": 0.2}):
            queue = Queue(kind="red", **base | other)  # type: ignore[arg-type]
            measured = await train.burst(_slow(queue), 4_000)
            shift = bench.directions["a_to_b"]._rate.written["average"]
            numbers = {"sent": measured["sent"], "numbers": measured["numbers"]}
            found.append({**base, **other, "average": shift, **numbers})
    return {"bursts": found, "frame_bytes": FRAME_BYTES}


CHECKS = (rates, buffers, token_buckets, first_cap, flow_caps, queues, codels, reds)
