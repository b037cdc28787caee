"""Journal lines of a link that does exactly what its plan says, for tests only."""

from __future__ import annotations

from random import Random
from typing import Any

from testbed.journal import Journal
from testbed.plan import Direction, Plan

S = 1_000_000_000
PROBES = 400
HEADER_BYTES = 66
GRAIN_BYTES = 184_000


def calibration(plan: Plan, direction: Direction) -> dict[str, Any]:
    """A rate 0.3 % off and a round trip 12 us too long."""
    rtt_ns = sum(state.delay_ns for state in plan.link.values())
    rate_bps = plan.link[direction].rate_bps
    return {
        "direction": direction, "rate_bps": rate_bps * 0.997,
        "span_ns": 200 * GRAIN_BYTES * 8 * S // rate_bps, "grain_bytes": GRAIN_BYTES,
        "rtt_ns": rtt_ns + 12_000,
    }  # fmt: skip


def train(plan: Plan, direction: Direction, start_ns: int, probes: int = PROBES) -> dict[str, Any]:
    """Delays spread evenly over uniform jitter, in an order of no meaning; nothing lost, doubled or late."""
    state = plan.link[direction]
    assert state.distribution == "uniform"
    low_ns, high_ns = state.delay_ns - state.jitter_ns, state.delay_ns + state.jitter_ns
    spread = [low_ns + (high_ns - low_ns) * (2 * one + 1) // (2 * probes) for one in range(probes)]
    Random(1).shuffle(spread)
    left_ns = [start_ns + number * 20_000_000 for number in range(probes)]
    arrived = [
        (number, left + delay_ns, True)
        for number, (left, delay_ns) in enumerate(zip(left_ns, spread, strict=True))
    ]
    return {
        "direction": direction, "clock": "virtual", "tells_limit_drops": True, "interval_ns": 20_000_000,
        "missed": 0, "sizes": [72] * probes, "left_ns": left_ns, "arrived": arrived,
    }  # fmt: skip


def places(packets: int, drops: int = 0, lost: int = 0, per_super_packet: int = 20) -> dict[str, Any]:
    """Counters at every place of a direction, after `packets` of 9000 bytes went on their way."""
    delivered = packets - lost

    def qdisc(count: int, dropped: int) -> dict[str, int]:
        return {
            "packets": count, "bytes": 9000 * count, "drops": dropped, "overlimits": 0, "marked": 0,
            "queue_packets": 0, "backlog_bytes": 0,
        }  # fmt: skip

    def device(count: int) -> dict[str, int]:
        joined = count - count // per_super_packet
        return {"packets": count - joined, "bytes": 9000 * count - HEADER_BYTES * joined, "drops": 0}

    return {
        "rate": qdisc(packets, drops), "queue": qdisc(packets, drops),
        "rate_device": device(packets), "wan_device": device(packets), "filter": {"drops": 0},
        "wan": {"drops": 0}, "delay": qdisc(delivered, lost), "delay_device": device(delivered),
        "far_device": device(delivered),
    }  # fmt: skip


def write(proof: Journal, plan: Plan, direction: Direction, *, t0_ns: int, end_ns: int | None) -> None:
    """Everything that audit.jsonl has of a direction; without an end when there was none."""
    proof.note("calibration", t0_ns - 60 * S, **calibration(plan, direction))
    proof.note("train", t0_ns - 30 * S, **train(plan, direction, t0_ns - 50 * S))
    proof.note("counters", t0_ns, direction=direction, moment="start", places=places(1000))
    if end_ns is not None:
        after = places(1_000_000, drops=7, lost=90)
        proof.note("counters", end_ns, direction=direction, moment="end", places=after)
        proof.note("settings", end_ns, direction=direction, readings=180, differences=[])
