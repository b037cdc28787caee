"""Runs in a guest: tenants, incast and microbursts on a clean link, and what became of them.

Arguments: the run directory. Says nothing of right and wrong; test_traffic.py compares with arithmetic.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from guest_bench import MS, WINDOW_BYTES, Bench, Results, link, sampled

from testbed import namespaces, sysctl
from testbed.capture.tcpdump import FLUSH_S, Captures
from testbed.journal import Journal
from testbed.plan import Burst, Capture, Microbursts, Tenant
from testbed.telemetry.tcp import TcpDump
from testbed.traffic import microbursts, tcp, tenant

RUN = Path(sys.argv[1])
RATE_BPS = 10**9


def lines(name: str) -> list[dict[str, Any]]:
    """What a journal file of the run holds."""
    text = (RUN / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


async def tenants(bench: Bench) -> Results:
    """Eight flows of drawn sizes with pauses, half a minute long, and the sockets that carry them."""
    await bench.set(link(10**10, 20, 5 * MS))
    start_ns = time.monotonic_ns()
    plan = Tenant(
        t_ns=0,
        until_ns=30_000 * MS,
        source="tenant-a",
        sink="tenant-b",
        flows=8,
        size_bytes=4_000_000,
        size_cv=1.0,
        pause_ns=100 * MS,
        congestion_control="bbr",
        seed=7,
    )
    journal = Journal(RUN / "tenants.jsonl")
    jobs = [
        asyncio.create_task(
            tenant.run(plan, flow, start_ns + plan.until_ns, address=bench.address, journal=journal)
        )
        for flow in range(plan.flows)
    ]
    busy, controls = [], set()
    while not all(job.done() for job in jobs):
        await asyncio.sleep(0.05)
        sockets = list(TcpDump("tenant-a").moved())
        busy.append(len(sockets))
        controls |= {one.congestion_control for one in sockets}
    await asyncio.gather(*jobs)
    return {
        "start_ns": start_ns,
        "end_ns": time.monotonic_ns(),
        "busy": busy,
        "controls": sorted(controls),
        "lines": lines("tenants"),
    }


async def dctcp(bench: Bench) -> Results:
    """A flow whose two ends both have to agree to ECN."""
    await bench.set(link(RATE_BPS, 20, MS))
    transfer = await bench.start(1_000_000, flows=1, congestion_control="dctcp")
    (flow,) = transfer.flows
    ends = [
        {
            "congestion_control": end.getsockopt(6, 13, 16).rstrip(b"\0").decode(),
            "options": end.getsockopt(6, 11, 232)[5],
        }
        for end in (flow._source, flow._sink)
    ]
    await transfer.finished()
    return {"ends": ends}


async def sharing(bench: Bench) -> Results:
    """A bulk transfer alone, then beside eight flows of a tenant that never pause."""
    await bench.set(link(RATE_BPS, 20, 5 * MS))
    bulk = await bench.start(2_000_000_000, flows=4)
    await asyncio.sleep(2)
    start_ns = time.monotonic_ns()
    plan = Tenant(
        t_ns=0,
        until_ns=0,
        source="tenant-a",
        sink="tenant-b",
        flows=8,
        size_bytes=1_000_000_000,
        size_cv=0,
        pause_ns=0,
        congestion_control="bbr",
        seed=1,
    )
    until_ns = start_ns + 6_000 * MS
    journal = Journal(RUN / "sharing.jsonl")
    jobs = [
        asyncio.create_task(tenant.run(plan, flow, until_ns, address=bench.address, journal=journal))
        for flow in range(plan.flows)
    ]
    first_bytes, before = bulk.received_bytes(), bench.read()
    await asyncio.gather(*jobs)
    after, seconds = bench.read(), (time.monotonic_ns() - start_ns) / 1e9
    mine = bulk.received_bytes() - first_bytes
    bulk.stop()
    await bench.drained()
    return {
        "seconds": seconds,
        "bulk_bytes": mine,
        "link_bytes": after.tx_bytes - before.tx_bytes,
        "lines": lines("sharing"),
    }


async def incast(bench: Bench) -> Results:
    """Four hosts, each able to fill the link, send to one at the same moment."""
    state = link(RATE_BPS, 5, MS)
    await bench.set(state)
    plans = [
        Burst(
            t_ns=0,
            source=f"a{n}",
            sink="tenant-b",
            flows=4,
            size_bytes=100_000_000,
            congestion_control="cubic",
        )
        for n in range(1, 5)
    ]
    before = bench.read()
    transfers = [
        await tcp.start(
            plan.source,
            (plan.sink, bench.address),
            flows=plan.flows,
            size_bytes=plan.size_bytes,
            congestion_control=plan.congestion_control,
        )
        for plan in plans
    ]
    await asyncio.sleep(0.5)
    firsts, start_ns = [one.received_bytes() for one in transfers], time.monotonic_ns()
    samples = await sampled(bench, 1.5, 0.005)
    got = [one.received_bytes() - first for first, one in zip(firsts, transfers, strict=True)]
    seconds = (time.monotonic_ns() - start_ns) / 1e9
    for one in transfers:
        one.stop()
    await bench.drained()
    return {
        "buffer_bytes": state.buffer_bytes,
        "seconds": seconds,
        "got_bytes": got,
        "most_bytes": max(sample[2] for sample in samples),
        "drops": bench.read().drops - before.drops,
        "alone_bps": await _alone_bps(bench),
    }


async def _alone_bps(bench: Bench) -> float:
    """What one of the senders alone gets through a link that is ten times as fast."""
    await bench.set(link(10 * RATE_BPS, 20, MS))
    start_ns = time.monotonic_ns()
    transfer = await tcp.start(
        "a1", ("tenant-b", bench.address), flows=4, size_bytes=500_000_000, congestion_control="cubic"
    )
    return 500_000_000 * 8e9 / (await transfer.finished() - start_ns)


async def bursts(bench: Bench) -> Results:
    """Microbursts at several rates, captured where they leave, over links that they fit and overflow."""
    found = {}
    microbursts.pace("tenant-a", "tenant-a-eth0")
    for name, rate_bps, packet_bytes, state in (
        ("slow", 10**9, 1500, link(10**11, 10, MS)),
        ("fast", 40 * 10**9, 1500, link(10**11, 10, MS)),
        ("small", 10 * 10**9, 200, link(10**11, 10, MS)),
        ("overflow", 10 * 10**9, 1500, link(RATE_BPS, 160, MS)),
    ):
        await bench.set(state)
        length_ns, every_ns = (40 * MS, 500 * MS) if name == "overflow" else (MS // 5, 20 * MS)
        plan = Microbursts(
            t_ns=50 * MS,
            until_ns=1050 * MS,
            source="tenant-a",
            sink="tenant-b",
            rate_bps=rate_bps,
            packet_bytes=packet_bytes,
            length_ns=length_ns,
            every_ns=every_ns,
        )
        captures = Captures(
            [Capture(node="edge-a", device="edge-a-lan", snap_bytes=60, filter="udp")],
            RUN / name,
            Journal(RUN / f"{name}-capture.jsonl"),
        )
        captures.start()
        distrusted: list[str] = []
        t0_ns = time.monotonic_ns()
        await microbursts.run(
            plan,
            t0_ns,
            address=bench.address,
            patience_ns=200 * MS,
            journal=Journal(RUN / f"{name}.jsonl"),
            distrust=distrusted.append,
        )
        await asyncio.sleep(FLUSH_S)
        captures.stop(distrusted.append)
        found[name] = {
            "rate_bps": rate_bps,
            "packet_bytes": packet_bytes,
            "length_ns": length_ns,
            "every_ns": every_ns,
            "first_ns": t0_ns + plan.t_ns,
            "buffer_bytes": state.buffer_bytes,
            "link_bps": state.rate_bps,
            "distrusted": distrusted,
            "lines": lines(name),
            "capture": lines(f"{name}-capture"),
        }
    return found


async def main() -> None:
    """All of it on one network, one after the other."""
    bench = Bench(9000, prefill_hosts=4)
    results: Results = {}
    for check in (tenants, dctcp, sharing, incast, bursts):
        results[check.__name__] = await check(bench)
        print(f"{check.__name__}: done after {time.monotonic():.1f} virtual s", flush=True)
    (RUN / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    namespaces.private_mounts()
    with sysctl.for_kernel(WINDOW_BYTES, 64):
        asyncio.run(main())
