"""Runs in a guest: what happens to single packets on the way: lost, late, early, twice, altered."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from guest_bench import MS, Results, link
from guest_delays import SizedDatagrams
from guest_wan import Wan, dice, kernel_state

from testbed import namespaces
from testbed.plan import LinkState, Loss

FRAME_BYTES, SMALL_FRAME_BYTES = 1514, 64
BUNCH = 500
APART_S = 0.006
RARE_LOSS_BYTES = 1_000_000_000


async def random_loss(wan: Wan, cells: list[tuple[float, int]]) -> Results:
    """Packets into the delay stage and packets lost there, while BBR carries super-packets through it.

    Cells are (ratio, packets).
    """
    found = []
    for number, (ratio, packets) in enumerate(cells):
        await wan.set(link(10**10, 20, MS))
        await wan.handshake_ns()
        state = link(10**10, 20, MS, loss=Loss(model="random", ratio=ratio))
        await wan.directions["a_to_b"].set(state, seed=dice("random_loss", number))
        before, pieces = wan.read(), _pieces()
        transfer = await wan.start(packets * wan.mtu_bytes, congestion_control="bbr")
        await transfer.finished()
        await wan.drained()
        after = wan.read()
        found.append(
            {
                "ratio": ratio,
                "packets": after.tx_packets - before.tx_packets,
                "lost": after.lost_packets - before.lost_packets,
                "pieces": _pieces() - pieces,
            }
        )
    return {"loads": found}


def _pieces() -> int:
    """Packets or super-packets, whichever came, that the WAN node has received from A."""
    with namespaces.entered("wan"):
        lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
    (counters,) = [line.split(":")[1].split() for line in lines if line.strip().startswith("wan-a:")]
    return int(counters[1])


async def through(wan: Wan, state: LinkState, seed: int, count: int, frame_bytes: int) -> SizedDatagrams:
    """So many numbered datagrams through a link that is clean until they are sent."""
    await wan.set(link(state.rate_bps, 20, state.delay_ns))
    datagrams = SizedDatagrams(wan, frame_bytes)
    await datagrams.warm_up()
    await wan.directions["a_to_b"].set(state, seed=seed)
    while datagrams.sent < count:
        datagrams.send(min(BUNCH, count - datagrams.sent))
        await wan.drained()
    datagrams.close()
    return datagrams


async def bursts(wan: Wan, models: list[dict[str, Any]], count: int) -> Results:
    """Which of `count` single datagrams were lost, for each loss model."""
    found = []
    for number, model in enumerate(models):
        state = link(10**10, 20, MS, loss=Loss(**model))
        before, seed = wan.read(), dice("bursts", number)
        datagrams = await through(wan, state, seed, count, SMALL_FRAME_BYTES)
        after = wan.read()
        found.append(
            {
                "model": model,
                "seed": seed,
                "sent": count,
                "lost": sorted(set(range(count)) - set(datagrams.numbers)),
                "counted": after.lost_packets - before.lost_packets,
            }
        )
    return {"models": found}


async def shares(wan: Wan, kinds: dict[str, float], count: int) -> Results:
    """What became of `count` datagrams, for each kind of trouble (a field of the link) and its ratio."""
    found = []
    for kind, ratio in kinds.items():
        state = msgspec.structs.replace(link(10**10, 20, MS), **{kind: ratio})
        datagrams = await through(wan, state, dice("shares", kind), count, FRAME_BYTES)
        times = Counter(datagrams.numbers)
        early = sum(delay_ns < MS // 2 for delay_ns in datagrams.delays_ns)
        found.append(
            {
                "kind": kind,
                "ratio": ratio,
                "sent": count,
                "frame_bytes": FRAME_BYTES,
                "missing": count - len(times),
                "twice": sum(seen == 2 for seen in times.values()),
                "early": early,
            }
        )
    return {"kinds": found}


async def jitter(wan: Wan, states: list[dict[str, Any]], count: int) -> Results:
    """Delays of datagrams so far apart that none can wait for the one before it."""
    found = []
    for number, state in enumerate(states):
        await wan.set(link(10**10, 20, MS))
        datagrams = SizedDatagrams(wan, SMALL_FRAME_BYTES)
        await datagrams.warm_up()
        await wan.directions["a_to_b"].set(link(10**10, 20, **state), seed=dice("jitter", number))
        for _ in range(count):
            datagrams.send()
            await asyncio.sleep(APART_S)
        await wan.drained()
        datagrams.close()
        found.append({**state, "delays_ns": datagrams.delays_ns})
    return {"distributions": found}


async def rare_loss(wan: Wan, ratio: float) -> Results:
    """The kernel's own words about a loss of which hardly anything can be seen."""
    direction = wan.directions["a_to_b"]
    await direction.set(link(10**11, 10, MS, loss=Loss(model="random", ratio=ratio)), seed=dice("rare_loss"))
    before = wan.read()
    transfer = await wan.start(RARE_LOSS_BYTES)
    await transfer.finished()
    await wan.drained()
    steps = kernel_state(direction)["delay"]["loss"]
    return {"ratio": ratio, "steps": steps, "lost": wan.read().lost_packets - before.lost_packets}
