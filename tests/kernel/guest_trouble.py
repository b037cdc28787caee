"""Runs in a guest: what is measured on a link that loses, jitters and goes away."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import msgspec
from guest_bench import MS, Bench, Datagrams, Results, link

from testbed import namespaces
from testbed.plan import DIRECTIONS, Loss


async def random_loss(bench: Bench) -> Results:
    """Packets that entered the delay stage and packets lost there, while super-packets pass through it."""
    found = []
    for ratio in (1e-3, 1e-2):
        await bench.set(link(8 * 10**9, 20, MS))
        await bench.handshake_ns()
        loss = Loss(model="random", ratio=ratio)
        await bench.directions["a_to_b"].set(link(8 * 10**9, 20, MS, loss=loss), seed=11)
        found.append({"ratio": ratio, **await _lossy_transfer(bench)})
    return {"loads": found}


async def _lossy_transfer(bench: Bench) -> Results:
    before, pieces = bench.read(), _received_pieces()
    transfer = await bench.start(400_000_000, congestion_control="bbr")
    await transfer.finished()
    await bench.drained()
    after = bench.read()
    return {
        "packets": after.tx_packets - before.tx_packets,
        "lost": after.lost_packets - before.lost_packets,
        "pieces": _received_pieces() - pieces,
    }


def _received_pieces() -> int:
    """Packets or super-packets, whichever came, that the WAN node has received from A."""
    with namespaces.entered("wan"):
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
    (counters,) = [line.split(":")[1].split() for line in lines if line.strip().startswith("wan-a:")]
    return int(counters[1])


async def bursts_of_loss(bench: Bench) -> Results:
    """Gilbert-Elliott: single datagrams, and a transfer in super-packets."""
    loss = Loss(model="gilbert_elliott", p=0.02, r=0.2, loss_bad=1.0)
    clean = link(10**10, 20, 5 * MS)
    await bench.set(clean)
    datagrams = Datagrams("tenant-a", "tenant-b", bench.address)
    await datagrams.warm_up()
    before = bench.read()
    await bench.directions["a_to_b"].set(link(10**10, 20, 5 * MS, loss=loss), seed=21)
    datagrams.send(40_000)
    await bench.drained()
    after = bench.read()
    single = {
        "sent": datagrams.sent,
        "arrived": datagrams.numbers,
        "queue_drops": after.drops - before.drops,
        "lost": after.lost_packets - before.lost_packets,
    }
    datagrams.close()
    rare = Loss(model="gilbert_elliott", p=1e-3, r=0.1, loss_bad=0.5)
    await bench.directions["a_to_b"].set(link(8 * 10**9, 20, 5 * MS, loss=rare), seed=22)
    return {"single": single, "transfer": await _lossy_transfer(bench)}


async def jitter(bench: Bench) -> Results:
    """Datagrams far apart, datagrams close together, and a transfer."""
    state = link(8 * 10**9, 200, 5 * MS, MS // 2)
    await bench.set(state, link(8 * 10**9, 200, 5 * MS))
    datagrams = Datagrams("tenant-a", "tenant-b", bench.address)
    await datagrams.warm_up()
    found = {}
    for name, count, times, pause_s in (("apart", 1, 600, 0.003), ("dense", 20, 300, 0.0005)):
        for _ in range(times):
            datagrams.send(count)
            await asyncio.sleep(pause_s)
        await bench.drained()
        found[name] = {
            "sent": datagrams.sent,
            "numbers": datagrams.numbers,
            "delays_ns": datagrams.delays_ns,
        }
        datagrams.arrived.clear()
        datagrams.sent = 0
    datagrams.close()
    drops = bench.read().drops
    transfer = await bench.start(200_000_000)
    infos = []
    while transfer.left_bytes:
        await asyncio.sleep(0.001)
        infos = [flow._source.getsockopt(6, socket.TCP_INFO, 232) for flow in transfer.flows]
    await transfer.finished()
    found["transfer"] = {
        "drops": bench.read().drops - drops,
        "retrans_bytes": [struct.unpack_from("=Q", info, 208)[0] for info in infos],
        "reord_seen": [struct.unpack_from("=I", info, 220)[0] for info in infos],
    }
    return {"delay_ns": state.delay_ns, "jitter_ns": state.jitter_ns, **found}


async def partition(bench: Bench) -> Results:
    """Datagrams both ways before, during and after a partition from A to B."""
    clean = link(10**9, 10, 5 * MS)
    cut = link(10**9, 10, 5 * MS, partitioned=True)
    await bench.set(clean)
    there = Datagrams("tenant-a", "tenant-b", bench.address)
    back = Datagrams("tenant-b", "tenant-a", bench.network.address("tenant-a"))
    await there.warm_up()
    await back.warm_up()
    found = []
    for state in (clean, cut, clean):
        await bench.directions["a_to_b"].set(state, seed=31)
        before = bench.read().lost_packets
        for datagrams in (there, back):
            datagrams.arrived.clear()
            datagrams.send(500)
        await asyncio.sleep(1)
        lost = bench.read().lost_packets - before
        found.append({"there": len(there.arrived), "back": len(back.arrived), "lost": lost})
    there.close()
    back.close()
    return {"phases": found}


async def seeded(bench: Bench, seed: int) -> Results:
    """A transfer over a link with loss and jitter, to the last counter and the last nanosecond."""
    await bench.set(link(10**9, 10, 5 * MS, MS // 5, loss=Loss(model="random", ratio=0.003)), seed=seed)
    transfer = await bench.start(30_000_000)
    end_ns = await transfer.finished()
    await bench.drained()
    return {"end_ns": end_ns, **{name: msgspec.structs.asdict(bench.read(name)) for name in DIRECTIONS}}
