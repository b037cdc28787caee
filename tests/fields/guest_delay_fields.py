"""Runs in a guest: delay, jitter, order, copies, damage, slots and the limit, measured with datagrams."""

from __future__ import annotations

import asyncio
import ctypes
import time
from typing import Self

from guest_bench import MS, Bench, Datagrams, Results, link

from testbed.plan import LinkState, Slot

RATE_BPS, DELAY_NS = 10**10, 5 * MS
MANY = 8_000
FRAME_BYTES = 14 + 20 + 8 + 16
"""Of a datagram: Ethernet, IP, UDP, number and time."""
_PR_SET_TIMERSLACK = 29


def clean(**more: object) -> LinkState:
    """A fast link, and what else it has."""
    return link(RATE_BPS, 100, DELAY_NS, **more)


class Train:
    """Datagrams from A to B, one state after the other."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def __aenter__(self) -> Self:
        await self._bench.set(clean())
        self._datagrams = Datagrams("tenant-a", "tenant-b", self._bench.address)
        await self._datagrams.warm_up()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._datagrams.close()
        await self._bench.set(clean())

    async def burst(self, state: LinkState, count: int = MANY, seed: int = 3) -> Results:
        """`count` at once; who arrived, how long each took, and when."""
        return await self._run(state, seed, lambda: self._datagrams.send(count))

    async def spaced(self, state: LinkState, count: int, pause_s: float, seed: int = 3) -> Results:
        """`count`, each after a pause that is exact to the microsecond."""

        def send() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
            for _ in range(count):
                self._datagrams.send()
                time.sleep(pause_s)

        return await self._run(state, seed, send)

    async def _run(self, state: LinkState, seed: int, send: object) -> Results:
        datagrams = self._datagrams
        datagrams.arrived.clear()
        datagrams.sent = 0
        await self._bench.directions["a_to_b"].set(state, seed)
        await asyncio.to_thread(send)  # type: ignore[arg-type]
        await self._bench.drained()
        await asyncio.sleep(0.001)
        return {
            "sent": datagrams.sent,
            "numbers": datagrams.numbers,
            "delays_ns": datagrams.delays_ns,
            "arrivals_ns": [end for _, _, end in datagrams.arrived],
        }


async def delays(bench: Bench) -> Results:
    """One-way delays, far apart."""
    async with Train(bench) as train:
        found = []
        for delay_ns in (50_000, 5 * MS, 85 * MS):
            state = link(RATE_BPS, 100, delay_ns)
            found.append({"delay_ns": delay_ns, **await train.spaced(state, 20, 0.001)})
    return {"trains": found, "frame_bytes": FRAME_BYTES, "rate_bps": RATE_BPS, "hops": 4}


async def distributions(bench: Bench) -> Results:
    """Delays drawn from each distribution, farther apart than any of them reaches."""
    async with Train(bench) as train:
        found = {}
        for name, jitter_ns in (
            ("uniform", MS),
            ("uniform", MS // 2),
            ("normal", MS // 2),
            ("pareto", MS // 2),
        ):
            state = clean(jitter_ns=jitter_ns, distribution=name)
            measured = await train.spaced(state, 1_000, 0.003)
            found[f"{name} {jitter_ns}"] = {"distribution": name, "jitter_ns": jitter_ns, **measured}
    return {"delay_ns": DELAY_NS, "trains": found}


async def standing_delay(bench: Bench) -> Results:
    """Jitter at three loads of a link on which a datagram takes a millisecond."""
    rate_bps, jitter_ns = FRAME_BYTES * 8 * 1000, 3 * MS
    async with Train(bench) as train:
        found = []
        for load in (0.0, 0.5, 0.95):
            spacing_s = 0.001 / load if load else 0.008
            state = LinkState(rate_bps=rate_bps, buffer_bytes=10**6, delay_ns=DELAY_NS, jitter_ns=jitter_ns)
            measured = await train.spaced(state, 1_000, spacing_s)
            found.append({"load": load, "spacing_ns": round(spacing_s * 1e9), **measured})
    return {"delay_ns": DELAY_NS, "jitter_ns": jitter_ns, "frame_ns": MS, "trains": found}


async def delay_steps(bench: Bench) -> Results:
    """A step down and a step up with datagrams on their way, every half millisecond."""
    found = {}
    async with Train(bench) as train:
        for name, before_ns, after_ns in (("down", 20 * MS, 5 * MS), ("up", 5 * MS, 20 * MS)):
            await bench.directions["a_to_b"].set(link(RATE_BPS, 100, before_ns), 1)
            sending = asyncio.create_task(train.spaced(link(RATE_BPS, 100, before_ns), 100, 0.0005))
            await asyncio.sleep(0.025)
            await bench.directions["a_to_b"].set(link(RATE_BPS, 100, after_ns), 1)
            step_ns = time.monotonic_ns()
            found[name] = {"before_ns": before_ns, "after_ns": after_ns, "step_ns": step_ns, **await sending}
    return found


async def shares(bench: Bench) -> Results:
    """Reordered, doubled and damaged datagrams, at two ratios each."""
    found = []
    async with Train(bench) as train:
        for field, ratio in (
            ("reorder", 0.01),
            ("reorder", 0.1),
            ("duplicate", 0.01),
            ("duplicate", 0.1),
            ("corrupt", 0.02),
            ("corrupt", 0.2),
        ):
            found.append({"field": field, "ratio": ratio, **await train.burst(clean(**{field: ratio}))})
    return {"trains": found, "delay_ns": DELAY_NS, "frame_bytes": FRAME_BYTES}


async def slots(bench: Bench) -> Results:
    """Arrivals of a dense train through slots, one of the four fields changed at a time."""
    found = []
    async with Train(bench) as train:
        for slot in (
            Slot(min_ns=4 * MS, max_ns=6 * MS),
            Slot(min_ns=2 * MS, max_ns=6 * MS),
            Slot(min_ns=4 * MS, max_ns=9 * MS),
            Slot(min_ns=4 * MS, max_ns=6 * MS, packets=10),
            Slot(min_ns=4 * MS, max_ns=6 * MS, size_bytes=7 * FRAME_BYTES),
        ):
            measured = await train.spaced(clean(slot=slot), 600, 0.0002)
            values = {name: getattr(slot, name) for name in slot.__struct_fields__}
            found.append({**values, **measured})
    return {"trains": found, "delay_ns": DELAY_NS, "frame_bytes": FRAME_BYTES}


async def limits(bench: Bench) -> Results:
    """A burst into a delay stage of so many packets."""
    async with Train(bench) as train:
        found = [
            {"limit": limit, **await train.burst(clean(limit_packets=limit), 1_000)}
            for limit in (100, 300, None)
        ]
    return {"trains": found}


CHECKS = (delays, distributions, standing_delay, delay_steps, shares, slots, limits)
