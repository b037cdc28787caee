"""Before the workload: whether the link carries what it should, and takes as long as it should.

The link is filled from tenant to tenant until its rate stage has so long a queue that it cannot run dry
before the next sample; what leaves it until then is its rate. A handshake is a round trip.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import msgspec

from testbed import traffic
from testbed.journal import Journal
from testbed.plan import Direction, LinkState
from testbed.shaping.link import WanDirection
from testbed.telemetry.link import LinkCounters

FLOWS = 4
SAMPLES_PER_BUFFER = 4
RATE_TOLERANCE = 0.02
GRAIN_BYTES = 2 * 65_536
"""What a sample may be off by at either end: a super-packet."""
RTT_SLACK_S = {"virtual": 0.0002, "real": 0.002}
ROUND_TRIPS = 40
SLOWEST_S = 0.5


async def calibrate(
    directions: Mapping[Direction, WanDirection],
    counters_of: Mapping[Direction, LinkCounters],
    *,
    hosts: Mapping[Direction, tuple[str, tuple[str, str]]],
    wanted: Mapping[Direction, LinkState],
    journal: Journal,
    distrust: Callable[[str], None],
    rtt_slack_s: float,
) -> None:
    """Measure each direction without its loss and jitter; a miss is a reason not to trust the run.

    `hosts`: sender, and receiver with its address, per direction. Leaves the links without loss and jitter.
    A partitioned link is not measured.
    """
    rtt_s = sum(state.delay_ns for state in wanted.values()) / 1e9
    if any(state.partitioned for state in wanted.values()):
        return
    for name, direction in directions.items():
        await direction.set(msgspec.structs.replace(wanted[name], loss=None, jitter_ns=0), seed=0)
    for name in directions:
        clean = wanted[name]
        sender, receiver = hosts[name]
        interval_s = clean.buffer_bytes * 8 / clean.rate_bps / SAMPLES_PER_BUFFER
        goodput_bps, handshake_s = await _fill(
            counters_of[name], sender, receiver, clean, rtt_s=rtt_s, interval_s=interval_s
        )
        journal.note(
            "calibration",
            time.monotonic_ns(),
            direction=name,
            wanted_bps=clean.rate_bps,
            goodput_bps=goodput_bps,
            wanted_rtt_ns=round(rtt_s * 1e9),
            rtt_ns=round(handshake_s * 1e9),
        )
        tolerance_bps = clean.rate_bps * RATE_TOLERANCE + GRAIN_BYTES * 8 / interval_s
        if abs(goodput_bps - clean.rate_bps) > tolerance_bps:
            distrust(
                f"calibration {name}: {goodput_bps / 1e9:.3f} Gbps where "
                f"{clean.rate_bps / 1e9:.3f} were asked"
            )
        if abs(handshake_s - rtt_s) > rtt_slack_s:
            distrust(f"calibration {name}: RTT {handshake_s * 1e3:.3f} ms where {rtt_s * 1e3:.3f} were asked")


async def _fill(
    counters: LinkCounters,
    sender: str,
    receiver: tuple[str, str],
    state: LinkState,
    *,
    rtt_s: float,
    interval_s: float,
) -> tuple[float, float]:
    """Throughput (bits/s) of the rate stage while it had a queue, else the best seen; handshake (s)."""
    longest_s = ROUND_TRIPS * rtt_s + SLOWEST_S
    transfer = await traffic.start(
        sender,
        receiver,
        flows=FLOWS,
        size_bytes=round(state.rate_bps / 8 * longest_s),
        congestion_control="cubic",
    )
    best_bps = 0.0
    deadline = time.monotonic() + longest_s
    before, at = counters.read(), time.monotonic()
    while time.monotonic() < deadline:
        await asyncio.sleep(interval_s)
        now, then = counters.read(), time.monotonic()
        bps = (now.tx_bytes - before.tx_bytes) * 8 / (then - at)
        best_bps = max(best_bps, bps)
        if before.backlog_bytes * 8 / state.rate_bps >= then - at:
            best_bps = bps
            break
        before, at = now, then
    transfer.stop()
    await asyncio.sleep(2 * rtt_s + state.buffer_bytes * 8 / state.rate_bps)
    return best_bps, transfer.handshake_ns / 1e9
