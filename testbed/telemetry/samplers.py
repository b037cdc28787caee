"""Samplers: what the kernel's counters say, into the journal, at fixed virtual intervals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence

import msgspec

from agents.config import CONTROL_PORT, HTTP_PORT, KV_PORT
from testbed.journal import Journal
from testbed.plan import Direction, LinkState
from testbed.shaping.link import WanDirection, bucket_bytes, loss_ratio
from testbed.telemetry.link import Counters, LinkCounters
from testbed.telemetry.tcp import Socket, TcpDump
from testbed.telemetry.watch import Watch

BEHIND_NS = 1_000_000
"""How far samples lag behind what happens on the same grid, whose timers come up to 1 ms late."""
RATE_SLACK = 1.02
"""A sample and its clock reading are not one: in real time, some may leave in between."""
SHORTEST_QUEUE_S, BUSY_SHARE = 0.004, 0.75
"""How long a queue must last to be looked at again, and after which part of that time; timers come up to 1 ms
late."""
_CONTROL_PORTS = {CONTROL_PORT, HTTP_PORT}


async def every(interval_ns: int, sample: Callable[[], None]) -> None:
    """Sample on a fixed grid, for as long as the task lives; it ends with what a sample raises.

    By timers and not by sleeping, which would make two turns of the event loop of each wake-up.
    """
    loop = asyncio.get_running_loop()
    failed, due_ns = loop.create_future(), time.monotonic_ns() + BEHIND_NS
    timer: asyncio.Handle

    def tick() -> None:
        nonlocal due_ns, timer
        try:
            sample()
        except Exception as error:  # noqa: BLE001 - whoever waits for the task hears of it
            failed.set_exception(error)
            return
        due_ns += interval_ns
        timer = loop.call_later(max(0, due_ns - time.monotonic_ns()) / 1e9, tick)

    timer = loop.call_later(BEHIND_NS / 1e9, tick)
    try:
        await failed
    finally:
        timer.cancel()


def link_sampler(
    directions: Mapping[Direction, WanDirection],
    link: LinkCounters,
    journal: Journal,
    distrust: Callable[[str], None],
    *,
    largest_packet_bytes: int,
) -> Callable[[], None]:
    """Counters and queues of both directions, and what left a rate stage that was surely busy.

    Where a queue stands that lasts a while, the sampler looks again before it can have run dry; that pair
    stands in the next line. Not to be trusted: a rate stage from which more went than its rate and its
    bucket (twice over, for its two ends) allow since the last sample.
    """
    before: dict[str, tuple[int, int]] = {}
    busy: dict[str, tuple[int, int, int]] = {}

    def look_again(name: Direction, since_ns: int, then: Counters, queued: LinkState) -> None:
        now, span_ns = link.rate_stage(name), time.monotonic_ns() - since_ns
        in_time = then.backlog_bytes * 8e9 / directions[name].fastest_bps(since_ns) >= span_ns
        state = directions[name].state
        assert state is not None
        # What is made anew loses what waited. A full tail-drop queue refuses newcomers; the others throw out
        # what waited, and may have run dry.
        same = (state.queue.kind, state.token_bucket) == (queued.queue.kind, queued.token_bucket)
        kept = state.queue.kind == "tail_drop" or now.drops == then.drops
        if in_time and same and kept:
            busy[name] = (since_ns, span_ns, now.tx_bytes - then.tx_bytes)

    def sample() -> None:
        found = link.read()
        with journal.together():
            for name, counters in found.items():
                note(name, counters)

    def note(name: Direction, counters: Counters) -> None:
        direction, now_ns = directions[name], counters.t_ns
        state, rate_bps = direction.state, direction.read_back["rate_bps"]
        assert state is not None
        then_ns, then_bytes = before.get(name, (now_ns, counters.tx_bytes))
        before[name] = (now_ns, counters.tx_bytes)
        fastest_bps = direction.fastest_bps(then_ns)
        allowed = fastest_bps * (now_ns - then_ns) / 8e9 * RATE_SLACK
        bucket = bucket_bytes(fastest_bps, largest_packet_bytes)
        if counters.tx_bytes - then_bytes > allowed + 2 * bucket:
            distrust(f"link {name}: more left the rate stage than its rate allows")
        lasts_s = counters.backlog_bytes * 8 / rate_bps
        if lasts_s >= SHORTEST_QUEUE_S:
            asyncio.get_running_loop().call_later(
                lasts_s * BUSY_SHARE, look_again, name, now_ns, counters, state
            )
        busy_from_ns, busy_ns, busy_bytes = busy.pop(name, (None, None, None))
        journal.note(
            "link",
            direction=name,
            rate_bps=rate_bps,
            delay_ns=direction.read_back["delay_ns"],
            jitter_ns=direction.read_back["jitter_ns"],
            loss_ratio=loss_ratio(state),
            **msgspec.structs.asdict(counters),
            busy_from_ns=busy_from_ns,
            busy_ns=busy_ns,
            busy_bytes=busy_bytes,
        )

    return sample


class SettingsReader:
    """Reads everything that shapes the link again, and remembers what was not as the bench had set it."""

    def __init__(self, directions: Mapping[Direction, WanDirection], watch: Watch, journal: Journal) -> None:
        self._directions, self._watch, self._journal = directions, watch, journal
        self._readings = 0
        self._differences: dict[Direction, list[str]] = {name: [] for name in directions}

    def read(self) -> None:
        """All settings of both directions, now, and what anybody has changed since the last time."""
        self._readings += 1
        for name, direction in self._directions.items():
            for problem in direction.verify():
                self._add(name, f"{problem.where}: {problem.found} where {problem.allowed}")
        for change in self._watch.read():
            place = (change.node, change.device)
            of = [name for name, one in self._directions.items() if change.outgoing and place in one.places]
            for name in of or self._directions:
                self._add(name, change.sentence)

    def _add(self, name: Direction, said: str) -> None:
        if said not in self._differences[name]:
            self._differences[name].append(said)

    def note(self) -> None:
        """What all readings have shown."""
        now_ns = time.monotonic_ns()
        for name, differences in self._differences.items():
            self._journal.note(
                "settings", now_ns, direction=name, readings=self._readings, differences=differences
            )


def tcp_sampler(hosts: Sequence[str], journal: Journal, bulk: Container[str]) -> Callable[[], None]:
    """All KV, bulk and tenant connections of `hosts` that have moved since the sample before.

    `bulk`: the local ends, address and port, of connections that carry bulk transfers.
    """
    dumps = {host: TcpDump(host, without=_CONTROL_PORTS) for host in hosts}

    def sample() -> None:
        now_ns = time.monotonic_ns()
        with journal.together():
            for host, dump in dumps.items():
                for one in dump.moved():
                    note(host, one, now_ns)

    def note(host: str, one: Socket, now_ns: int) -> None:
        journal.note(
            "tcp",
            now_ns,
            host=host,
            local=one.local,
            remote=one.remote,
            use="kv" if one.remote_port == KV_PORT else "bulk" if one.local in bulk else "tenant",
            cwnd_packets=one.cwnd_packets,
            rtt_ns=one.rtt_ns,
            bytes_acked=one.bytes_acked,
            bytes_retrans=one.bytes_retrans,
            delivery_bps=one.delivery_bps,
            notsent_bytes=one.notsent_bytes,
            congestion_control=one.congestion_control,
        )

    return sample
