"""Before the workload: what the link carries, and how long it takes there and back.

The link is filled from tenant to tenant until its rate stage has so long a queue that it cannot run dry
before the next sample; what leaves it until then is its rate. A handshake is a round trip. `testbed.audit`
compares both with the plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from testbed import traffic
from testbed.journal import Journal
from testbed.plan import Direction, LinkState
from testbed.shaping.link import WanDirection
from testbed.telemetry.link import LinkCounters
from testbed.telemetry.qdisc import Stats

FLOWS = 4
SAMPLES_PER_BUFFER = 4
LONGEST_INTERVAL_S = 0.01
GRAINS, LEAST_GRAINS = 200, 20
LONGEST_SPAN_S = 1.0
"""How long to measure: until so many super-packets have left, or so long, but never fewer than a few."""
LOOKS = 100
HANDSHAKES = 8
"""The quickest counts: in real time a busy processor delays some."""
ROUND_TRIPS = 40
SLOWEST_S = 0.5


def cleaned(state: LinkState) -> LinkState:
    """The same rate, buffer and delay, and nothing that would keep TCP from filling it."""
    return LinkState(rate_bps=state.rate_bps, buffer_bytes=state.buffer_bytes, delay_ns=state.delay_ns)


@dataclass(frozen=True, slots=True)
class Busy:
    """A time during which the rate stage surely had something to send, and what left it."""

    span_s: float
    rate_bps: float


async def measure(
    directions: Mapping[Direction, WanDirection],
    link: LinkCounters,
    *,
    hosts: Mapping[Direction, tuple[tuple[str, str], tuple[str, str]]],
    wanted: Mapping[Direction, LinkState],
    journal: Journal,
    grain_bytes: int,
) -> None:
    """Measure rate and round trip of each direction, cleaned, and note them; leaves the links cleaned.

    Meanwhile the other direction is as fast as the faster of both.

    `hosts`: (name, address) of sender and receiver, per direction. `grain_bytes`: the largest super-packet,
    by which counters move.
    """
    rtt_s = sum(state.delay_ns for state in wanted.values()) / 1e9
    fastest = max(wanted.values(), key=lambda state: state.rate_bps)
    for name in directions:
        for other, direction in directions.items():  # acknowledgements must not be what limits it
            state = wanted[name] if other == name else fastest
            await direction.set(
                msgspec.structs.replace(cleaned(state), delay_ns=wanted[other].delay_ns), seed=0
            )
        (sender, _), receiver = hosts[name]
        busy, handshake_s = await _fill(
            partial(link.rate_stage, name),
            sender,
            receiver,
            wanted[name],
            rtt_s=rtt_s,
            grain_bytes=grain_bytes,
        )
        journal.note(
            "calibration",
            time.monotonic_ns(),
            direction=name,
            rate_bps=busy.rate_bps,
            span_ns=round(busy.span_s * 1e9),
            grain_bytes=grain_bytes,
            rtt_ns=round(handshake_s * 1e9),
        )
    for name, direction in directions.items():
        await direction.set(cleaned(wanted[name]), seed=0)


async def _fill(
    read: Callable[[], Stats],
    sender: str,
    receiver: tuple[str, str],
    state: LinkState,
    *,
    rtt_s: float,
    grain_bytes: int,
) -> tuple[Busy, float]:
    """What left the rate stage while it was busy for longest, and the time of the quickest handshake (s)."""
    buffer_s = state.buffer_bytes * 8 / state.rate_bps
    grain_s = grain_bytes * 8 / state.rate_bps
    span_s = max(min(GRAINS * grain_s, LONGEST_SPAN_S), LEAST_GRAINS * grain_s)
    interval_s = min(buffer_s / SAMPLES_PER_BUFFER, max(LONGEST_INTERVAL_S, span_s / LOOKS))
    span_s = max(span_s, SAMPLES_PER_BUFFER * interval_s)
    longest_s = ROUND_TRIPS * rtt_s + 2 * buffer_s + span_s + SLOWEST_S
    # The first SYN of a new network is lost, as its devices are not yet active (net/core/link_watch.c).
    first = await traffic.start(sender, receiver, flows=1, size_bytes=1, congestion_control="cubic")
    await first.finished()
    handshakes_ns = []
    for _ in range(HANDSHAKES):
        knock = await traffic.start(sender, receiver, flows=1, size_bytes=1, congestion_control="cubic")
        await knock.finished()
        handshakes_ns.append(knock.handshake_ns)
    transfer = await traffic.start(
        sender,
        receiver,
        flows=FLOWS,
        size_bytes=round(state.rate_bps / 8 * longest_s),
        congestion_control="cubic",
    )
    longest = Busy(0.0, 0.0)
    deadline = time.monotonic() + longest_s
    before, at = read(), time.monotonic()
    since, since_bytes = at, before.tx_bytes
    while time.monotonic() < deadline and longest.span_s < span_s:
        await asyncio.sleep(interval_s)
        now, then = read(), time.monotonic()
        if before.backlog_bytes * 8 / state.rate_bps < then - at:  # it may have run dry in between
            since, since_bytes = then, now.tx_bytes
        elif then - since > longest.span_s:
            longest = Busy(then - since, (now.tx_bytes - since_bytes) * 8 / (then - since))
        before, at = now, then
    transfer.stop()
    await asyncio.sleep(2 * rtt_s + buffer_s)
    return longest, min(handshakes_ns) / 1e9
