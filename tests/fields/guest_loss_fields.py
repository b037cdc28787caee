"""Runs in a guest: every parameter of every loss model, measured with datagrams."""

from __future__ import annotations

from typing import Any

from guest_bench import Bench, Results
from guest_delay_fields import Train, clean

from testbed.plan import Loss

GE = {"p": 0.02, "r": 0.2, "loss_bad": 1.0, "loss_good": 0.0}
GI = {"p13": 0.02, "p31": 0.2, "p32": 0.2, "p23": 0.3, "p14": 0.01}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("random", {"ratio": 0.01}),
    ("random", {"ratio": 0.1}),
    ("gilbert_elliott", GE),
    ("gilbert_elliott", {**GE, "p": 0.04}),
    ("gilbert_elliott", {**GE, "r": 0.5}),
    ("gilbert_elliott", {**GE, "loss_bad": 0.5}),
    ("gilbert_elliott", {**GE, "loss_good": 0.05}),
    ("four_state", GI),
    ("four_state", {**GI, "p13": 0.05}),
    ("four_state", {**GI, "p31": 0.6}),
    ("four_state", {**GI, "p32": 0.7}),
    ("four_state", {**GI, "p23": 0.8}),
    ("four_state", {**GI, "p14": 0.1}),
)


async def losses(bench: Bench) -> Results:
    """Who arrived, for each model and each parameter changed."""
    found = []
    async with Train(bench) as train:
        for number, (model, values) in enumerate(CASES):
            state = clean(loss=Loss(model=model, **values))  # type: ignore[arg-type]
            measured = await train.burst(state, seed=100 + number)
            found.append(
                {"model": model, "values": values, "sent": measured["sent"], "numbers": measured["numbers"]}
            )
    return {"trains": found}


async def periodic(bench: Bench) -> Results:
    """Who arrived when every n-th is lost."""
    found = []
    async with Train(bench) as train:
        for every in (7, 100):
            state = clean(loss=Loss(model="periodic", every_packets=every))
            measured = await train.burst(state, 1_000)
            found.append({"every": every, "sent": measured["sent"], "numbers": measured["numbers"]})
    return {"trains": found}


async def partitions(bench: Bench) -> Results:
    """Who arrived before, during and after a partition."""
    found = []
    async with Train(bench) as train:
        for partitioned in (False, True, False):
            measured = await train.burst(clean(partitioned=partitioned), 200)
            found.append({"partitioned": partitioned, "arrived": len(measured["numbers"])})
    return {"trains": found}


CHECKS = (losses, periodic, partitions)
