"""Runs in a guest: transfers over a lossy link while tcpdump listens, and what the kernel says of them.

Arguments: the run directory. Says nothing of right and wrong; test_capture.py reads the pcap files.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

from guest_bench import MS, WINDOW_BYTES, Bench, Results, link

from testbed import namespaces, sysctl
from testbed.capture import tcpdump
from testbed.capture.tcpdump import FLUSH_S, Captures
from testbed.errors import ShapingError
from testbed.journal import Journal
from testbed.plan import Capture, Loss

RUN = Path(sys.argv[1])
WAN = Capture(node="edge-a", device="edge-a-wan", snap_bytes=96, filter="tcp")
SIZE_BYTES, FLOWS = 80_000_000, 4


def lines(name: str) -> list[dict[str, Any]]:
    """What a journal file of the run holds."""
    text = (RUN / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


async def lossy(bench: Bench) -> Results:
    """One transfer, seen behind the rate stage and at its receiver; TCP's own count of what it sent again."""
    await bench.set(link(10**9, 500, 5 * MS))
    await bench.handshake_ns()
    await asyncio.sleep(0.1)  # until its connection is closed
    loss = Loss(model="random", ratio=1e-3)
    await bench.directions["a_to_b"].set(link(10**9, 500, 5 * MS, loss=loss), seed=11)
    at_b = Capture(
        node="tenant-b", device="tenant-b-eth0", snap_bytes=60, filter="tcp and dst host 10.2.0.200"
    )
    captures = Captures([WAN, at_b], RUN / "lossy", Journal(RUN / "lossy.jsonl"))
    captures.start()
    distrusted: list[str] = []
    transfer = await bench.start(SIZE_BYTES, flows=FLOWS)
    infos: list[bytes] = []
    while transfer.received_bytes() < SIZE_BYTES:
        await asyncio.sleep(0.001)
        if all(flow._source.fileno() >= 0 for flow in transfer.flows):
            infos = [flow._source.getsockopt(6, 11, 232) for flow in transfer.flows]
    await transfer.finished()
    await bench.drained()
    await asyncio.sleep(FLUSH_S)
    captures.stop(distrusted.append)
    return {
        "distrusted": distrusted,
        "handshake_ns": transfer.handshake_ns,
        "retrans_bytes": sum(struct.unpack_from("=Q", info, 208)[0] for info in infos),
        "queue_drops": bench.read().drops,
        "lines": lines("lossy"),
    }


async def refused(_bench: Bench) -> Results:
    """A filter that tcpdump does not take."""
    wrong = Capture(node="edge-a", device="edge-a-wan", snap_bytes=96, filter="tcp portt 7000")
    captures = Captures([wrong], RUN / "refused", Journal(RUN / "refused.jsonl"))
    try:
        captures.start()
    except ShapingError as error:
        return {"problems": [str(problem) for problem in error.problems]}
    finally:
        captures.kill()
    return {"problems": []}


async def troubled(bench: Bench) -> Results:
    """A tcpdump that does not get to read for a while, and one that is killed."""
    await bench.set(link(10**9, 50, MS))
    tcpdump.BUFFER_KIB = 1024
    found: Results = {}
    for name, stop in (("starved", signal.SIGSTOP), ("killed", signal.SIGKILL)):
        captures = Captures([WAN], RUN / name, Journal(RUN / f"{name}.jsonl"))
        captures.start()
        ((_, process),) = captures._running
        os.kill(process.pid, stop)
        await (await bench.start(400_000_000)).finished()
        if stop == signal.SIGSTOP:
            os.kill(process.pid, signal.SIGCONT)
        await asyncio.sleep(FLUSH_S)
        distrusted: list[str] = []
        captures.stop(distrusted.append)
        found[name] = {"distrusted": distrusted, "lines": lines(name)}
    return found


async def main() -> None:
    """All of it on one network, one after the other."""
    bench = Bench(1500)
    results: Results = {}
    for check in (lossy, refused, troubled):
        results[check.__name__] = await check(bench)
    (RUN / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    namespaces.private_mounts()
    with sysctl.for_kernel(WINDOW_BYTES, 32):
        asyncio.run(main())
