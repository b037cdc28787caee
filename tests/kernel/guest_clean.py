"""Runs in a guest: what is measured on a link without loss and jitter."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any
from unittest import mock

from guest_bench import MS, Bench, Results, link, sampled
from msgspec import structs

from agents.transport import tcp_info
from testbed import namespaces
from testbed.errors import ShapingError
from testbed.plan import Loss
from testbed.shaping.link import BUFFER, HTB, NETEM
from testbed.shaping.netlink import Device
from testbed.telemetry.qdisc import Qdiscs, there
from testbed.telemetry.tcp import TcpDump


async def delays(bench: Bench) -> Results:
    """Round trips for several delays, the same both ways and not."""
    found = []
    for there_ns, back_ns in ((50_000, 50_000), (5_750_000,) * 2, (85 * MS, 85 * MS), (2 * MS, 31 * MS)):
        await bench.set(link(10**11, 10, there_ns), link(10**11, 10, back_ns))
        await bench.handshake_ns()
        found.append({"wanted_ns": there_ns + back_ns, "handshake_ns": await bench.handshake_ns()})
    return {"handshakes": found}


async def rates(bench: Bench) -> Results:
    """Samples of the rate stage under load at three rates."""
    found = []
    for rate_bps, seconds in ((10**9, 2.0), (8 * 10**9, 1.0), (10**11, 0.5)):
        state = link(rate_bps, 20, 5 * MS)
        await bench.set(state)
        transfer = await bench.start(10**11)
        samples = await sampled(bench, seconds, 0.002)
        transfer.stop()
        await bench.drained()
        found.append({"rate_bps": rate_bps, "buffer_bytes": state.buffer_bytes, "samples": samples})
    return {"loads": found}


async def buffers(bench: Bench) -> Results:
    """The queue under load, and the round trip of a newcomer who has to wait in it."""
    state, found = link(8 * 10**9, 25, 5 * MS), []
    await bench.set(state)
    await bench.handshake_ns()
    transfer = await bench.start(10**11)
    most = 0
    for _ in range(100):
        most = max(most, bench.read().backlog_bytes)
        await asyncio.sleep(0.001)
    for _ in range(20):
        before = bench.read().backlog_bytes
        found.append({"backlog_bytes": before, "handshake_ns": await bench.handshake_ns()})
        most = max(most, before, bench.read().backlog_bytes)
    drops = bench.read().drops
    transfer.stop()
    await bench.drained()
    limits = {"rate_bps": state.rate_bps, "buffer_bytes": state.buffer_bytes, "delay_ns": state.delay_ns}
    return {**limits, "most_bytes": most, "drops": drops, "newcomers": found}


async def rate_steps(bench: Bench) -> Results:
    """Down to a quarter and up again, while a transfer fills the link."""
    found = []
    await bench.set(link(8 * 10**9, 50, 5 * MS))
    transfer = await bench.start(10**11)
    await asyncio.sleep(0.5)
    for rate_bps, seconds in ((8 * 10**9, 0.5), (2 * 10**9, 0.1), (8 * 10**9, 0.02)):
        buffer_ms = 50 * 8 * 10**9 / rate_bps  # the same bytes at any rate
        await bench.directions["a_to_b"].set(link(rate_bps, buffer_ms, 5 * MS), seed=3)
        await asyncio.sleep(0.001)  # what is on its way out leaves at the old rate
        found.append({"rate_bps": rate_bps, "samples": await sampled(bench, seconds, 0.001)})
    transfer.stop()
    await bench.drained()
    return {"loads": found}


async def parsers(bench: Bench) -> Results:
    """The same socket and the same qdiscs, read in two ways each."""
    await bench.set(link(10**9, 10, 5 * MS))
    with namespaces.entered("tenant-b"):
        listener = socket.create_server((bench.address, 0))
    with namespaces.entered("tenant-a"):
        sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    loop = asyncio.get_running_loop()
    for end in (sender, receiver):
        end.setblocking(False)
    sending = asyncio.create_task(loop.sock_sendall(sender, bytes(4_000_000)))
    got = 0
    while got < 4_000_000:
        got += len(await loop.sock_recv(receiver, 1 << 20))
    await sending
    await bench.drained()
    raw = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    local = "{}:{}".format(*sender.getsockname())
    (parsed,) = [one for one in TcpDump("tenant-a").moved() if one.local == local]
    qdiscs = []
    for node, device, handle in (
        ("edge-a", "edge-a-wan", HTB),
        ("edge-a", "edge-a-wan", BUFFER),
        ("wan", "wan-b", NETEM),
    ):
        (dumped,) = [one for one in await bench.dump(node, device) if one["handle"] == handle]
        ours = asdict(there(Qdiscs(node, [(device, handle)]).read()[0]))
        qdiscs.append({"ours": ours, "pyroute2": dumped})
    found = {
        "remote": "{}:{}".format(*sender.getpeername()),
        "diag": asdict(parsed),
        "agent": structs.asdict(tcp_info.read(sender)),
        "cwnd_packets": struct.unpack_from("=I", raw, 80)[0],
        "rtt_us": struct.unpack_from("=I", raw, 68)[0],
        "notsent_bytes": struct.unpack_from("=I", raw, 144)[0],
        "delivery_rate": struct.unpack_from("=Q", raw, 160)[0],
        "bytes_acked": struct.unpack_from("=Q", raw, 120)[0],
        "bytes_retrans": struct.unpack_from("=Q", raw, 208)[0],
        "congestion_control": sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        .rstrip(b"\0")
        .decode(),
        "qdiscs": qdiscs,
    }
    for end in (sender, receiver, listener):
        end.close()
    return found


Options = dict[str, Any]


@contextmanager
def meddled(device: Device, kind: str, meddle: Callable[[Options], Options]) -> Iterator[None]:
    """Let one value go wrong on its way to the kernel."""
    send = device.tc

    def tc(message: int, discipline: str, options: Any = None, flags: int = 0, **fields: int) -> None:
        send(message, discipline, meddle(options) if discipline == kind else options, flags, **fields)

    with mock.patch.object(device, "tc", tc):
        yield


def _attribute(name: str, value: Any) -> Callable[[Options], Options]:
    """Replace one attribute."""
    return lambda options: {
        **options,
        "attrs": [(key, value if key == name else old) for key, old in options["attrs"]],
    }


def _option(name: str, value: int) -> Callable[[Options], Options]:
    """Replace one field of the options."""
    return lambda options: {**options, name: value}


async def read_back(bench: Bench) -> Results:
    """What is said when the kernel ends up with another value than the one asked for."""
    direction = bench.directions["a_to_b"]
    rate_stage, delay_stage = direction._rate._device, direction._delay._device
    model = {"attrs": [("NETEM_LOSS_GE", {"p": 1, "r": 2, "h": 3, "k1": 4})]}
    cases: dict[str, tuple[Device, str, Callable[[Options], Options]]] = {
        "rate: rate": (rate_stage, "htb", _attribute("TCA_HTB_CEIL64", 10**9)),
        "rate: buffer": (rate_stage, "bfifo", _option("limit", 1_000_000)),
        "delay: limit": (delay_stage, "netem", _option("limit", 1000)),
        "delay: loss": (delay_stage, "netem", _option("loss", 7)),
        "delay: delay": (delay_stage, "netem", _attribute("TCA_NETEM_LATENCY64", 4 * MS)),
        "delay: jitter": (delay_stage, "netem", _attribute("TCA_NETEM_JITTER64", 2 * MS)),
        "delay: seed": (delay_stage, "netem", _attribute("TCA_NETEM_PRNG_SEED", 99)),
        "delay: loss_model": (delay_stage, "netem", _attribute("TCA_NETEM_LOSS", model)),
    }
    found: dict[str, list[str]] = {}
    for number, (name, (device, kind, meddle)) in enumerate(cases.items(), start=1):
        loss = Loss(model="gilbert_elliott", p=0.01, r=0.1, loss_bad=0.5)
        state = link(10**9 + 8000 * number, 10, 5 * MS + number, MS, loss=loss)
        with meddled(device, kind, meddle):
            try:
                await direction.set(state, seed=5)
                found[name] = []
            except ShapingError as error:
                found[name] = [problem.where for problem in error.problems]
    await direction.set(link(10**9, 10, 5 * MS), seed=5)
    after = [str(problem) for problem in direction.verify()]
    with meddled(rate_stage, "htb", _attribute("TCA_HTB_RATE64", 10**9)), suppress(ShapingError):
        await direction.set(link(2 * 10**9, 5, 5 * MS), seed=5)
    sabotaged = [problem.where for problem in direction.verify()]
    return {"refused": found, "after": after, "sabotaged": sabotaged}


async def clocks(_bench: Bench) -> Results:
    """The clock as the C library reads it, between two readings by system call."""
    library = ctypes.CDLL(None)
    found = []

    def by_system_call(clock: int) -> int:
        spec = (ctypes.c_long * 2)()
        library.syscall(228, clock, ctypes.byref(spec))  # clock_gettime on x86-64
        return spec[0] * 10**9 + spec[1]

    for clock in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC):
        for pause_s in (0, 0.0001, 0.01, 3):
            await asyncio.sleep(pause_s)
            before, between = by_system_call(clock), time.clock_gettime_ns(clock)
            found.append((before, between, by_system_call(clock)))
    return {"readings": found}
