"""Runs in a guest: how TCP fares on a link that changes, and on one that loses."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from guest_bench import Results, link
from guest_wan import Wan, dice, open_streams, sleep_until

from testbed.plan import LinkState, Loss

STEP_NS = 10_000_000
BIN_NS = 100_000_000
TRACE_BPS = (2 * 10**9, 10**10)
TRACE_DELAY_NS = 6_000_000
TRACE_BUFFER_BYTES = 50_000_000
TRACE_WINDOW_BYTES = 10_000_000
WARM_ROUND_TRIPS = 100


async def trace(wan: Wan, seconds: float) -> Results:
    """A hundred rates a second, a random walk, and what arrived up to the end of each bin.

    The windows hold more than the fullest link and less than link and buffer: demand always exceeds the
    rate, and nothing is lost.
    """
    walk = random.Random(7)
    low, high = TRACE_BPS
    rate = high
    await wan.set(_at(rate))
    streams = await open_streams(wan, 4, congestion_control="cubic", window_bytes=TRACE_WINDOW_BYTES)
    await asyncio.sleep(1)
    start_ns = time.monotonic_ns() // STEP_NS * STEP_NS + 2 * STEP_NS
    changes, bins, backlogs = [], [], []
    changes.append((start_ns - 2 * STEP_NS, rate))
    before = wan.read()
    for step in range(round(seconds * 1e9) // STEP_NS + 1):
        await sleep_until(start_ns + step * STEP_NS)
        if step * STEP_NS % BIN_NS == 0:
            bins.append((time.monotonic_ns(), sum(stream.received_bytes for stream in streams)))
        backlogs.append(wan.read().backlog_bytes)
        rate = min(max(round(rate * walk.uniform(0.7, 1.4)), low), high)
        await wan.directions["a_to_b"].set(_at(rate), seed=step + 1)
        changes.append((time.monotonic_ns(), rate))
    drops = wan.read().drops - before.drops
    for stream in streams:
        stream.close()
    await wan.drained()
    return {
        "mtu_bytes": wan.mtu_bytes,
        "delay_ns": TRACE_DELAY_NS,
        "changes": changes,
        "bins": bins,
        "drops": drops,
        "least_backlog_bytes": min(backlogs),
    }


def _at(rate_bps: int) -> LinkState:
    return link(rate_bps, TRACE_BUFFER_BYTES * 8000 / rate_bps, TRACE_DELAY_NS)


async def under_loss(wan: Wan, cells: list[dict[str, Any]]) -> Results:
    """Goodput under random loss, for each {cc, flows, ratio, rtt_ms, rate_bps, seconds}; MTU as it is."""
    found = []
    for number, cell in enumerate(cells):
        rtt_ms, rate_bps = cell["rtt_ms"], cell["rate_bps"]
        clean = link(rate_bps, 20, rtt_ms * 500_000)
        await wan.set(clean)
        await wan.handshake_ns()
        lossy = link(rate_bps, 20, rtt_ms * 500_000, loss=Loss(model="random", ratio=cell["ratio"]))
        await wan.directions["a_to_b"].set(lossy, seed=dice("under_loss", number))
        streams = await open_streams(wan, cell["flows"], congestion_control=cell["cc"])
        await asyncio.sleep(WARM_ROUND_TRIPS * rtt_ms / 1000)
        before, start_ns = sum(stream.received_bytes for stream in streams), time.monotonic_ns()
        await asyncio.sleep(cell["seconds"])
        payload_bytes = sum(stream.received_bytes for stream in streams) - before
        span_s = (time.monotonic_ns() - start_ns) / 1e9
        for stream in streams:
            stream.close()
        await wan.drained()
        measured = {"mtu_bytes": wan.mtu_bytes, "payload_bytes": payload_bytes, "span_s": span_s}
        found.append({**cell, **measured})
    return {"flows": found}
