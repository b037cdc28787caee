"""Pairs of states that differ in one field, and what the kernel has before and after."""

from __future__ import annotations

from typing import Any

from guest_bench import MS, Bench, Results

from testbed.errors import ShapingError
from testbed.plan import LinkState, Loss, Queue, Slot, TokenBucket
from testbed.shaping.limits import CAP_MAX_BPS, EVERY_MAX, RED_MAX_BYTES, budget_max_bytes

BASE: dict[str, Any] = {"rate_bps": 10**9, "buffer_bytes": 3_000_000, "delay_ns": 5 * MS}
GE = {"model": "gilbert_elliott", "p": 0.01, "r": 0.2, "loss_bad": 0.5, "loss_good": 0.001}
GI = {"model": "four_state", "p13": 0.01, "p31": 0.3, "p32": 0.1, "p23": 0.2, "p14": 0.001}
RED = {"kind": "red", "min_bytes": 300_000, "max_bytes": 900_000, "probability": 0.1}
CODEL = {"kind": "codel", "target_ns": 5 * MS, "interval_ns": 100 * MS}
SLOT = {"min_ns": MS, "max_ns": 2 * MS, "packets": 10, "size_bytes": 20_000}
BUCKET = {"sustained_bps": 10**8, "budget_bytes": 10**7}

Pair = tuple[dict[str, Any], dict[str, Any]]
"""Two states, as what they have beyond BASE."""


def _nested(name: str, kind: Any, values: dict[str, Any], /, **other: Any) -> Pair:
    return {name: kind(**values)}, {name: kind(**values | other)}


PAIRS: dict[str, Pair] = {
    "LinkState.rate_bps": ({}, {"rate_bps": 2 * 10**9}),
    "LinkState.buffer_bytes": ({}, {"buffer_bytes": 1_000_000}),
    "LinkState.delay_ns": ({}, {"delay_ns": 4 * MS}),
    "LinkState.jitter_ns": ({"jitter_ns": MS}, {"jitter_ns": MS + 1}),
    "LinkState.distribution": ({"jitter_ns": MS}, {"jitter_ns": MS, "distribution": "normal"}),
    "LinkState.loss": ({}, {"loss": Loss(model="random", ratio=0.01)}),
    "LinkState.reorder": ({}, {"reorder": 0.01}),
    "LinkState.duplicate": ({}, {"duplicate": 0.01}),
    "LinkState.corrupt": ({}, {"corrupt": 0.01}),
    "LinkState.slot": ({}, {"slot": Slot(**SLOT)}),
    "LinkState.queue": ({}, {"queue": Queue(kind="fq_codel")}),
    "LinkState.token_bucket": ({}, {"token_bucket": TokenBucket(**BUCKET)}),
    "LinkState.flow_cap_bps": ({"flow_cap_bps": 10**8}, {"flow_cap_bps": 2 * 10**8}),
    "LinkState.path_mtu_bytes": ({}, {"path_mtu_bytes": 1000}),
    "LinkState.black_hole_bytes": ({}, {"black_hole_bytes": 1000}),
    "LinkState.limit_packets": ({}, {"limit_packets": 100}),
    "LinkState.partitioned": ({}, {"partitioned": True}),
    "Loss.model": _nested("loss", Loss, GE, model="four_state", p13=0.01),
    "Loss.ratio": _nested("loss", Loss, {"model": "random", "ratio": 1e-9}, ratio=1.3e-9),
    **{f"Loss.{name}": _nested("loss", Loss, GE, **{name: 0.123}) for name in GE if name != "model"},
    **{f"Loss.{name}": _nested("loss", Loss, GI, **{name: 0.123}) for name in GI if name != "model"},
    "Loss.every_packets": _nested("loss", Loss, {"model": "periodic", "every_packets": 10}, every_packets=11),
    **{f"Slot.{name}": _nested("slot", Slot, SLOT, **{name: value - 1}) for name, value in SLOT.items()},
    "Queue.kind": _nested("queue", Queue, CODEL, kind="fq_codel"),
    "Queue.ecn": _nested("queue", Queue, CODEL, ecn=True),
    "Queue.target_ns": _nested("queue", Queue, CODEL, target_ns=6 * MS),
    "Queue.interval_ns": _nested("queue", Queue, CODEL, interval_ns=90 * MS),
    "Queue.min_bytes": _nested("queue", Queue, RED, min_bytes=310_000),
    "Queue.max_bytes": _nested("queue", Queue, RED, max_bytes=910_000),
    "Queue.probability": _nested("queue", Queue, RED, probability=0.2),
    **{
        f"TokenBucket.{name}": _nested("token_bucket", TokenBucket, BUCKET, **{name: value + 800})
        for name, value in BUCKET.items()
    },
}


HUGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "budget": _nested(
        "token_bucket",
        TokenBucket,
        {"sustained_bps": 8 * 10**6, "budget_bytes": budget_max_bytes(8 * 10**6)},
        budget_bytes=budget_max_bytes(8 * 10**6) + 1,
    ),
    "sustained": _nested(
        "token_bucket",
        TokenBucket,
        {"sustained_bps": 10**9 - 8, "budget_bytes": 1},
        sustained_bps=10**9,
    ),
    "flow_cap": ({"flow_cap_bps": CAP_MAX_BPS}, {"flow_cap_bps": CAP_MAX_BPS + 8}),
    "loss": _nested(
        "loss", Loss, {"model": "periodic", "every_packets": EVERY_MAX}, every_packets=EVERY_MAX + 1
    ),
    "red, max": _nested("queue", Queue, {**RED, "max_bytes": RED_MAX_BYTES}, max_bytes=RED_MAX_BYTES + 1),
}
"""The largest that the kernel has of something, and the next larger."""


async def extremes(bench: Bench) -> Results:
    """What becomes of the largest of everything, and of more."""
    direction, found = bench.directions["a_to_b"], {}
    for name, (most, more) in HUGE.items():
        await direction.set(LinkState(**BASE | most), seed=1)
        differences = [str(problem) for problem in direction.verify()]
        try:
            await direction.set(LinkState(**BASE | more), seed=1)
            refused = []
        except ShapingError as error:
            refused = [problem.where for problem in error.problems]
        found[name] = {"differences": differences, "refused": refused}
    fast = {"rate_bps": 10**11, "buffer_bytes": 125_000_000}
    red = Queue(kind="red", min_bytes=25_000_000, max_bytes=75_000_000, probability=1.0)
    await direction.set(LinkState(**BASE | fast, queue=red), seed=1)
    await direction.set(LinkState(**BASE), seed=1)
    return found


async def read_backs(bench: Bench) -> Results:
    """What the kernel reports in either state of a pair, after the one and the other was set."""
    direction = bench.directions["a_to_b"]

    async def reports(values: dict[str, Any]) -> dict[str, Any]:
        await direction.set(LinkState(**BASE | values), seed=1)
        assert direction.verify() == []
        return {
            f"{name}: {field}": value
            for name, reported in direction.reports().items()
            for field, value in reported.items()
        }

    found = {}
    for name, (one, other) in PAIRS.items():
        before, after = await reports(one), await reports(other)
        again = await reports(one)
        fields = sorted(before.keys() | after.keys())
        found[name] = {
            "changed": [field for field in fields if before.get(field) != after.get(field)],
            "stayed": [
                field
                for field in fields
                if before.get(field) != again.get(field) and field not in ("delay: limit", "delay: seed")
            ],
        }
    return found
