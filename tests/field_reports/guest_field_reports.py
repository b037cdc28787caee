"""Runs in a guest: the situations in which other people's links went wrong, measured here."""

from __future__ import annotations

import asyncio
import time

import guest_goodput
import msgspec
from guest_bench import MS, Results, link
from guest_delays import SizedDatagrams
from guest_wan import Stream, Wan, dice, kernel_state, open_streams

from testbed.plan import LinkState, Loss

SMALL_FRAME_BYTES = 64
SENDERS = 10
FIRST_STATE = link(10**10, 20, 5 * MS, MS, loss=Loss(model="random", ratio=0.001), duplicate=0.01)
ONE_CHANGE: dict[str, dict[str, object]] = {
    "rate": {"rate_bps": 5 * 10**9},
    "buffer": {"buffer_bytes": 10_000_000},
    "delay": {"delay_ns": 7 * MS},
    "jitter": {"jitter_ns": MS // 2},
    "loss": {"loss": Loss(model="random", ratio=0.01)},
    "duplicate": {"duplicate": 0.02},
    "reorder": {"reorder": 0.01},
    "corrupt": {"corrupt": 0.01},
}


async def _payload_bps(streams: list[Stream], seconds: float) -> float:
    """What arrives at the receivers from now on."""
    before, start_ns = sum(stream.received_bytes for stream in streams), time.monotonic_ns()
    await asyncio.sleep(seconds)
    arrived = sum(stream.received_bytes for stream in streams) - before
    return arrived * 8e9 / (time.monotonic_ns() - start_ns)


async def retransmit_share(wan: Wan, ratio: float, seconds: float) -> Results:
    """What BBR senders sent again on a path that loses, and what the path has lost."""
    await wan.set(link(10**9, 50, 5 * MS))
    await wan.handshake_ns()
    lossy = link(10**9, 50, 5 * MS, loss=Loss(model="random", ratio=ratio))
    await wan.directions["a_to_b"].set(lossy, seed=dice("retransmit_share"))
    before = wan.read()
    streams = await open_streams(wan, 4, congestion_control="bbr")
    await asyncio.sleep(seconds)
    for stream in streams:
        await stream.finish()
    senders = [stream.sender() for stream in streams]
    after = wan.read()
    for stream in streams:
        stream.close()
    await wan.drained()
    return {
        "ratio": ratio,
        "data_packets": sum(sender.data_packets for sender in senders),
        "retrans_packets": sum(sender.retrans_packets for sender in senders),
        "lost": after.lost_packets - before.lost_packets,
        "queue_drops": after.drops - before.drops,
    }


async def long_delay(wan: Wan, count: int) -> Results:
    """A second of delay: datagrams and a transfer under the computed limit, datagrams under one of 1000."""
    computed = link(10**9, 100, 1000 * MS)
    await wan.set(computed, link(10**9, 100, MS))
    datagrams = SizedDatagrams(wan, SMALL_FRAME_BYTES)
    await datagrams.warm_up()
    found: Results = {"sent": count}
    for name, state in (
        ("computed", computed),
        ("forced", msgspec.structs.replace(computed, limit_packets=1000)),
    ):
        await wan.directions["a_to_b"].set(state, seed=1)
        datagrams.forget()
        before = wan.read()
        datagrams.send(count)
        if name == "computed":
            transfer = await wan.start(250_000_000)
            await transfer.finished()
        await wan.drained()
        after = wan.read()
        found[name] = {
            "arrived": len(datagrams.arrived),
            "limit_drops": after.limit_drops - before.limit_drops,
            "lost": after.lost_packets - before.lost_packets,
            "queue_drops": after.drops - before.drops,
            "limit": kernel_state(wan.directions["a_to_b"])["delay"]["limit"],
        }
    datagrams.close()
    return found


async def window_over_delay(wan: Wan, window_bytes: int, rtts_ms: list[int]) -> Results:
    """Goodput of one stream with a fixed window."""
    rate_bps, found = 10**10, []
    for rtt_ms in rtts_ms:
        await wan.set(link(rate_bps, 20, rtt_ms * MS // 2))
        await wan.handshake_ns()
        streams = await open_streams(wan, 1, congestion_control="cubic", window_bytes=window_bytes)
        await asyncio.sleep(max(0.1, 20 * rtt_ms / 1000))
        bps = await _payload_bps(streams, max(0.2, 20 * rtt_ms / 1000))
        streams[0].close()
        await wan.drained()
        found.append({"rtt_ms": rtt_ms, "payload_bps": bps})
    return {"rate_bps": rate_bps, "window_bytes": window_bytes, "cells": found}


async def rates_read_back(wan: Wan, rates_bps: list[int]) -> Results:
    """Rates beyond 32 bits of bytes a second: what the kernel says, and what goes through."""
    found = []
    for rate_bps in rates_bps:
        cell = await guest_goodput.steady(wan, rate_bps, 2)
        found.append({**cell, "kernel_bps": kernel_state(wan.directions["a_to_b"])["rate"]["rate"] * 8})
    return {"cells": found}


async def one_change(wan: Wan) -> Results:
    """The kernel's words before and after one field of a live link changes, and of the other direction."""
    there, back = wan.directions["a_to_b"], wan.directions["b_to_a"]
    found = []
    for name, fields in ONE_CHANGE.items():
        await wan.set(FIRST_STATE)
        before = {"there": kernel_state(there), "back": kernel_state(back)}
        await there.set(msgspec.structs.replace(FIRST_STATE, **fields), seed=dice("one_change", name))
        after = {"there": kernel_state(there), "back": kernel_state(back)}
        found.append({"field": name, "before": before, "after": after})
    clean = LinkState(rate_bps=10**10, buffer_bytes=25_000_000, delay_ns=5 * MS)
    await wan.set(clean)
    datagrams = SizedDatagrams(wan, SMALL_FRAME_BYTES)
    await datagrams.warm_up()
    delays_ns = []
    for state in (clean, msgspec.structs.replace(clean, loss=Loss(model="random", ratio=0.001))):
        await there.set(state, seed=1)
        datagrams.forget()
        datagrams.send()
        await wan.drained()
        delays_ns += datagrams.delays_ns
    datagrams.close()
    return {"changes": found, "delays_ns": delays_ns, "delay_ns": clean.delay_ns}


async def ten_senders(wan: Wan, cap_bps: int) -> Results:
    """A sender with a cap of its own alone on the link, then ten of them, each on its own host."""
    state = link(8 * 10**9, 20, 5 * MS)
    await wan.set(state)
    await wan.handshake_ns()
    found: Results = {"cap_bps": cap_bps, "rate_bps": state.rate_bps}
    for name, senders in (("alone", 1), ("together", SENDERS)):
        streams = []
        for number in range(1, senders + 1):
            streams += await open_streams(
                wan, 1, congestion_control="cubic", source=f"a{number}", pacing_bps=cap_bps
            )
        await asyncio.sleep(1)
        before = msgspec.structs.asdict(wan.read())
        found[name] = {"payload_bps": await _payload_bps(streams, 2.0), "before": before}
        found[name]["after"] = msgspec.structs.asdict(wan.read())
        for stream in streams:
            stream.close()
        await wan.drained()
    return found
