"""Runs in a guest: TCP goodput in steady state, over rates and round trips."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from guest_bench import Results, link
from guest_wan import Wan, open_streams, sleep_until

SMALLEST_BUFFER_MS = 20
SAMPLES_PER_BUFFER = 12
MEASURED_BYTES = 100_000_000
ROUND_TRIPS = 3
CONGESTION_CONTROL = "cubic"


async def goodput(wan: Wan, cells: list[tuple[int, int]]) -> Results:
    """Payload per second at the receivers while a queue stands, for each [bits per second, RTT in ms]."""
    return {"cells": [await steady(wan, *cell) for cell in cells]}


async def steady(wan: Wan, rate_bps: int, rtt_ms: int) -> Results:
    """One cell.

    The buffer holds two bandwidth-delay products, the windows together one and a half: after slow start a
    queue of a quarter of the buffer stands, and nothing can be lost.
    """
    buffer_ms = max(2 * rtt_ms, SMALLEST_BUFFER_MS)
    state = link(rate_bps, buffer_ms, rtt_ms * 500_000)
    await wan.set(state)
    await wan.handshake_ns()
    flows = 8 if rate_bps > 10**10 else 4
    window_bytes = round(rate_bps / 8000 * (rtt_ms + buffer_ms / 4) / flows)
    before = wan.read()
    begun_s = time.monotonic()
    streams = await open_streams(
        wan,
        flows,
        congestion_control=CONGESTION_CONTROL,
        window_bytes=window_bytes,
        low_water_bytes=max(1, min(16 << 20, window_bytes // 16)),
    )
    full_bytes = rate_bps / 8000 * buffer_ms / 5
    while wan.read().backlog_bytes < full_bytes and time.monotonic() < begun_s + 60:  # noqa: ASYNC110
        await asyncio.sleep(rtt_ms / 1000)
    await asyncio.sleep(rtt_ms / 1000)
    warm_s = time.monotonic() - begun_s
    span_ns = max(MEASURED_BYTES * 8 * 10**9 // rate_bps, ROUND_TRIPS * rtt_ms * 10**6, 10**8)
    samples = []
    start_ns = time.monotonic_ns()
    count = round(span_ns / 1e6 / buffer_ms * SAMPLES_PER_BUFFER)
    for number in range(count + 1):
        await sleep_until(start_ns + span_ns * number // count)
        received = sum(stream.received_bytes for stream in streams)
        samples.append((time.monotonic_ns(), received, wan.read().backlog_bytes))
    after = wan.read()
    for stream in streams:
        stream.close()
    await wan.drained()
    return {
        "mtu_bytes": wan.mtu_bytes,
        "rate_bps": rate_bps,
        "rtt_ms": rtt_ms,
        "warm_s": warm_s,
        "flows": flows,
        "span_s": (samples[-1][0] - samples[0][0]) / 1e9,
        "payload_bytes": samples[-1][1] - samples[0][1],
        "drops": after.drops - before.drops + after.lost_packets - before.lost_packets,
        "least_backlog_bytes": min(sample[2] for sample in samples),
        "longest_gap_s": max(later[0] - earlier[0] for earlier, later in pairwise(samples)) / 1e9,
    }
