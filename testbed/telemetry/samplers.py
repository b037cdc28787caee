"""Samplers: what the kernel's counters say, into the journal, at fixed virtual intervals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from agents.config import CONTROL_PORT, HTTP_PORT, KV_PORT
from testbed.journal import Journal
from testbed.plan import Direction
from testbed.shaping.link import WanDirection, bucket_bytes, flight_limit, loss_ratio
from testbed.telemetry.link import LinkCounters
from testbed.telemetry.tcp import TcpDump

TCP_INTERVAL_NS = 1_000_000_000
RATE_SLACK = 1.02
"""A sample and its clock reading are not one: in real time, some may leave in between."""
_CONTROL_PORTS = {CONTROL_PORT, HTTP_PORT}


async def every(interval_ns: int, sample: Callable[[], None]) -> None:
    """Sample on a fixed grid, for as long as the task lives."""
    due_ns = time.monotonic_ns()
    while True:
        sample()
        due_ns += interval_ns
        await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)


def link_sampler(
    directions: Mapping[Direction, WanDirection],
    counters_of: Mapping[Direction, LinkCounters],
    journal: Journal,
    distrust: Callable[[str], None],
    *,
    largest_packet_bytes: int,
) -> Callable[[], None]:
    """Counters and queues of both directions.

    Not to be trusted: a delay stage filled to its limit, and a rate stage from which more went than its
    rate and its bucket (twice over, for its two ends) allow since the last sample.
    """
    before: dict[str, tuple[int, int, int]] = {}

    def sample() -> None:
        for name, direction in directions.items():
            state = direction.state
            assert state is not None
            counters = counters_of[name].read()
            if counters.flight_packets >= flight_limit(state):
                distrust(f"link {name}: the delay stage was full and dropped packets of its own accord")
            now_ns, rate_bps = time.monotonic_ns(), direction.read_back["rate_bps"]
            then_ns, then_bytes, then_bps = before.get(name, (now_ns, counters.tx_bytes, rate_bps))
            before[name] = (now_ns, counters.tx_bytes, rate_bps)
            allowed = max(rate_bps, then_bps) * (now_ns - then_ns) / 8e9 * RATE_SLACK
            bucket = bucket_bytes(max(rate_bps, then_bps), largest_packet_bytes)
            if counters.tx_bytes - then_bytes > allowed + 2 * bucket:
                distrust(f"link {name}: more left the rate stage than its rate allows")
            journal.note(
                "link",
                now_ns,
                direction=name,
                rate_bps=rate_bps,
                delay_ns=direction.read_back["delay_ns"],
                jitter_ns=direction.read_back["jitter_ns"],
                loss_ratio=loss_ratio(state),
                tx_bytes=counters.tx_bytes,
                tx_packets=counters.tx_packets,
                drops=counters.drops,
                backlog_bytes=counters.backlog_bytes,
                lost_packets=counters.lost_packets,
                flight_packets=counters.flight_packets,
            )

    return sample


def tcp_sampler(hosts: Sequence[str], journal: Journal) -> Callable[[], None]:
    """All KV and tenant connections of `hosts` that have moved since the sample before."""
    dumps = {host: TcpDump(host) for host in hosts}
    seen: dict[tuple[str, str], tuple[int, int]] = {}

    def sample() -> None:
        now_ns = time.monotonic_ns()
        for host, dump in dumps.items():
            for one in dump.sockets():
                moved = (one.bytes_acked, one.bytes_retrans)
                key = (one.local, one.remote)
                if {one.local_port, one.remote_port} & _CONTROL_PORTS or seen.get(key, (1, 0)) == moved:
                    continue
                seen[key] = moved
                journal.note(
                    "tcp",
                    now_ns,
                    host=host,
                    local=one.local,
                    remote=one.remote,
                    use="kv" if one.remote_port == KV_PORT else "tenant",
                    cwnd_packets=one.cwnd_packets,
                    rtt_ns=one.rtt_ns,
                    bytes_acked=one.bytes_acked,
                    bytes_retrans=one.bytes_retrans,
                    delivery_bps=one.delivery_bps,
                    notsent_bytes=one.notsent_bytes,
                    congestion_control=one.congestion_control,
                )

    return sample
