"""Runs in a guest: sets links, loads them, and writes what it measured to results.json.

Arguments: a group of checks, the seed of the dice, and the run directory. Says nothing of right and wrong;
test_link.py compares with arithmetic.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.transport import tcp_info
from testbed import namespaces, sysctl, traffic
from testbed.errors import ShapingError
from testbed.plan import DIRECTIONS, Direction, LinkState, Loss
from testbed.shaping.link import BUFFER, HTB, NETEM, WanDirection
from testbed.telemetry.link import Counters, LinkCounters
from testbed.telemetry.qdisc import QdiscStats
from testbed.telemetry.tcp import TcpDump
from testbed.topology import Network
from topologies import TOPOLOGIES

WINDOW_BYTES = 256 << 20
CONNECTIONS = 32
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


class Bench:
    """Two datacenters with a tenant each, as `inside` builds them."""

    def __init__(self, mtu_bytes: int) -> None:
        self._thread = ThreadPoolExecutor(1)
        hosts = {"prefill_hosts": 1, "pd_hosts": 1}
        self.network = self._thread.submit(Network, "two_dc", hosts, mtu_bytes, WINDOW_BYTES).result()
        self.directions = {name: self._thread.submit(self._direction, name).result() for name in DIRECTIONS}
        wan = TOPOLOGIES["two_dc"].wan
        self.counters = {name: LinkCounters(*wan[name]) for name in DIRECTIONS}
        self.address = self.network.address("tenant-b")

    def _direction(self, name: Direction) -> WanDirection:
        (rate_node, rate_device), (delay_node, delay_device) = TOPOLOGIES["two_dc"].wan[name]
        return WanDirection(
            name,
            (self.network.netlink(rate_node), rate_device, rate_node),
            (self.network.netlink(delay_node), delay_device),
            self._thread,
        )

    async def dump(self, node: str, device: str) -> list[dict[str, Any]]:
        """What pyroute2 says of all qdiscs of a device."""

        def qdiscs() -> list[dict[str, Any]]:
            netlink = self.network.netlink(node)
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

        return await asyncio.get_running_loop().run_in_executor(self._thread, qdiscs)

    async def set(self, state: LinkState, back: LinkState | None = None, seed: int = 1) -> None:
        """Both directions; `back` is that from B to A, if it differs."""
        await self.directions["a_to_b"].set(state, seed)
        await self.directions["b_to_a"].set(back or state, seed + 1)

    def read(self, direction: Direction = "a_to_b") -> Counters:
        return self.counters[direction].read()

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
        while any(self.read(name).backlog_bytes or self.read(name).flight_packets for name in DIRECTIONS):
            await asyncio.sleep(0.05)


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
        while not self.arrived:
            await asyncio.sleep(0.01)
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
    for rate_bps in (8 * 10**9, 2 * 10**9, 8 * 10**9):
        await bench.directions["a_to_b"].set(link(rate_bps, 400 * 10**9 / 8 / rate_bps, 5 * MS), seed=3)
        samples = await sampled(bench, 1.0 if rate_bps > 4 * 10**9 else 0.3, 0.002)
        found.append({"rate_bps": rate_bps, "buffer_bytes": 0, "samples": samples})
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
    (parsed,) = [one for one in TcpDump("tenant-a").sockets() if one.local == local]
    qdiscs = []
    for node, device, handle in (
        ("edge-a", "edge-a-wan", HTB),
        ("edge-a", "edge-a-wan", BUFFER),
        ("wan", "wan-b", NETEM),
    ):
        (dumped,) = [one for one in await bench.dump(node, device) if one["handle"] == handle]
        qdiscs.append({"ours": asdict(QdiscStats(node, device, handle).read()), "pyroute2": dumped})
    found = {
        "remote": "{}:{}".format(*sender.getpeername()),
        "diag": asdict(parsed),
        "agent": asdict(tcp_info.read(sender)),
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


class Meddler:
    """A netlink socket that lets one value go wrong on its way to the kernel."""

    def __init__(self, netlink: Any, kind: str, meddle: Callable[[dict[str, Any]], None]) -> None:
        self._netlink, self._kind, self._meddle = netlink, kind, meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._netlink, name)

    def tc(self, verb: str, kind: str, **arguments: Any) -> Any:
        if kind == self._kind:
            self._meddle(arguments)
        return self._netlink.tc(verb, kind, **arguments)


def _attribute(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Replace one netem attribute."""

    def meddle(arguments: dict[str, Any]) -> None:
        options = dict(arguments["option_values"])
        options["attrs"] = [(key, value if key == name else old) for key, old in options["attrs"]]
        arguments["option_values"] = options

    return meddle


def _option(name: str, value: int) -> Callable[[dict[str, Any]], None]:
    """Replace one field of the options."""

    def meddle(arguments: dict[str, Any]) -> None:
        arguments["option_values"] = {**arguments["option_values"], name: value}

    return meddle


async def read_back(bench: Bench) -> Results:
    """What is said when the kernel ends up with another value than the one asked for."""
    direction, found = bench.directions["a_to_b"], {}
    loss = Loss(model="gilbert_elliott", p=0.01, r=0.1, loss_bad=0.5)
    state = link(10**9, 10, 5 * MS, MS, loss=loss)
    model = {"attrs": [("NETEM_LOSS_GE", {"p": 1, "r": 2, "h": 3, "k1": 4})]}
    cases: dict[str, tuple[str, str, Callable[[dict[str, Any]], None]]] = {
        "rate": ("_rate", "htb", lambda arguments: arguments.update(rate=10**8)),
        "buffer": ("_rate", "bfifo", _option("limit", 1_000_000)),
        "limit": ("_delay", "netem", _option("limit", 1000)),
        "loss": ("_delay", "netem", _option("loss", 7)),
        "TCA_NETEM_LATENCY64": ("_delay", "netem", _attribute("TCA_NETEM_LATENCY64", 4 * MS)),
        "TCA_NETEM_JITTER64": ("_delay", "netem", _attribute("TCA_NETEM_JITTER64", 2 * MS)),
        "TCA_NETEM_PRNG_SEED": ("_delay", "netem", _attribute("TCA_NETEM_PRNG_SEED", 99)),
        "loss_model": ("_delay", "netem", _attribute("TCA_NETEM_LOSS", model)),
    }
    for name, (stage, kind, meddle) in cases.items():
        netlink = getattr(direction, stage)
        setattr(direction, stage, Meddler(netlink, kind, meddle))
        try:
            await direction.set(state, seed=5)
            found[name] = []
        except ShapingError as error:
            found[name] = [problem.where for problem in error.problems]
        finally:
            setattr(direction, stage, netlink)
    await direction.set(state, seed=5)
    return {"refused": found}


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
        infos = [flow._source.getsockopt(6, socket.TCP_INFO, 232) for flow in transfer.flows]  # noqa: SLF001
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
    return {"end_ns": end_ns, **{name: asdict(bench.read(name)) for name in DIRECTIONS}}


Check = Callable[[Bench], Awaitable[Results]]
CLEAN: tuple[Check, ...] = (delays, rates, buffers, rate_steps, parsers, read_back, clocks)
TROUBLE: tuple[Check, ...] = (random_loss, bursts_of_loss, jitter, partition)


async def main(group: str, seed: int, run: Path) -> None:
    """Do the checks of a group, one after the other, on one network."""
    bench = Bench(9000 if group == "clean" else 1500)
    results: Results = {}
    if group == "seeded":
        results["seeded"] = await seeded(bench, seed)
    else:
        for check in CLEAN if group == "clean" else TROUBLE:
            results[check.__name__] = await check(bench)
            print(f"{check.__name__}: done after {time.monotonic():.1f} virtual s", flush=True)
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    namespaces.private_mounts()
    with sysctl.for_kernel(WINDOW_BYTES, CONNECTIONS):
        asyncio.run(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
