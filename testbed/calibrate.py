"""Before the workload: whether the link carries what it should, and takes as long as it should.

The link is filled from tenant to tenant until its rate stage has so long a queue that it cannot run dry
before the next sample; what leaves it until then is its rate. A handshake is a round trip.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from testbed import traffic
from testbed.journal import Journal
from testbed.plan import Direction, LinkState
from testbed.shaping.link import WanDirection
from testbed.telemetry.link import LinkCounters

FLOWS = 4
SAMPLES_PER_BUFFER = 4
LONGEST_INTERVAL_S = 0.01
HANDSHAKE_BYTES = 100
RATE_TOLERANCE = 0.02
GRAINS = 200
LONGEST_SPAN_S = 1.0
"""How long to measure: until this many super-packets have left, or for this long."""
RTT_SLACK_S = {"virtual": 0.0002, "real": 0.002}
ROUND_TRIPS = 40
SLOWEST_S = 0.5


def cleaned(state: LinkState) -> LinkState:
    """The same link without loss, jitter and partition."""
    return msgspec.structs.replace(state, loss=None, jitter_ns=0, partitioned=False)


@dataclass(frozen=True, slots=True)
class Busy:
    """A time during which the rate stage surely had something to send, and what left it."""

    span_s: float
    rate_bps: float


async def calibrate(
    directions: Mapping[Direction, WanDirection],
    counters_of: Mapping[Direction, LinkCounters],
    *,
    hosts: Mapping[Direction, tuple[str, tuple[str, str]]],
    wanted: Mapping[Direction, LinkState],
    journal: Journal,
    distrust: Callable[[str], None],
    rtt_slack_s: float,
    grain_bytes: int,
) -> None:
    """Measure each direction without its loss and jitter; a miss is a reason not to trust the run.

    `hosts`: sender, and receiver with its address, per direction. `grain_bytes`: the largest super-packet,
    by which counters move. Leaves the links without loss, jitter
    and partition.
    """
    rtt_s = sum(state.delay_ns for state in wanted.values()) / 1e9
    for name, direction in directions.items():
        await direction.set(cleaned(wanted[name]), seed=0)
    for name in directions:
        clean = wanted[name]
        sender, receiver = hosts[name]
        busy, handshake_s = await _fill(
            counters_of[name], sender, receiver, clean, rtt_s=rtt_s, grain_bytes=grain_bytes
        )
        journal.note(
            "calibration",
            time.monotonic_ns(),
            direction=name,
            wanted_bps=clean.rate_bps,
            goodput_bps=busy.rate_bps,
            wanted_rtt_ns=round(rtt_s * 1e9),
            rtt_ns=round(handshake_s * 1e9),
        )
        if not busy.span_s:
            distrust(
                f"calibration {name}: the rate could not be measured, because a queue never lasted from one "
                f"sample to the next; the buffer holds {clean.buffer_bytes * 8e3 / clean.rate_bps:.3f} ms"
            )
        elif abs(busy.rate_bps / clean.rate_bps - 1) > RATE_TOLERANCE + grain_bytes * 8 / (
            busy.span_s * clean.rate_bps
        ):
            distrust(
                f"calibration {name}: {busy.rate_bps / 1e6:.3f} Mbps where "
                f"{clean.rate_bps / 1e6:.3f} were asked"
            )
        if abs(handshake_s - rtt_s) > rtt_slack_s + 2 * HANDSHAKE_BYTES * 8 / clean.rate_bps:
            distrust(f"calibration {name}: RTT {handshake_s * 1e3:.3f} ms where {rtt_s * 1e3:.3f} were asked")


async def _fill(
    counters: LinkCounters,
    sender: str,
    receiver: tuple[str, str],
    state: LinkState,
    *,
    rtt_s: float,
    grain_bytes: int,
) -> tuple[Busy, float]:
    """What left the rate stage while it was busy for longest, and the time of a handshake (s)."""
    buffer_s = state.buffer_bytes * 8 / state.rate_bps
    interval_s = min(buffer_s / SAMPLES_PER_BUFFER, LONGEST_INTERVAL_S)
    longest_s = ROUND_TRIPS * rtt_s + 2 * buffer_s + SLOWEST_S
    transfer = await traffic.start(
        sender,
        receiver,
        flows=FLOWS,
        size_bytes=round(state.rate_bps / 8 * longest_s),
        congestion_control="cubic",
    )
    longest = Busy(0.0, 0.0)
    span_s = max(min(GRAINS * grain_bytes * 8 / state.rate_bps, LONGEST_SPAN_S), 4 * interval_s)
    deadline = time.monotonic() + longest_s
    before, at = counters.read(), time.monotonic()
    since, since_bytes = at, before.tx_bytes
    while time.monotonic() < deadline and longest.span_s < span_s:
        await asyncio.sleep(interval_s)
        now, then = counters.read(), time.monotonic()
        if before.backlog_bytes * 8 / state.rate_bps < then - at:  # it may have run dry in between
            since, since_bytes = then, now.tx_bytes
        elif then - since > longest.span_s:
            longest = Busy(then - since, (now.tx_bytes - since_bytes) * 8 / (then - since))
        before, at = now, then
    transfer.stop()
    await asyncio.sleep(2 * rtt_s + buffer_s)
    return longest, transfer.handshake_ns / 1e9
