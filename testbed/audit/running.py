"""What the samples of the run say: settings, rate, token bucket, drops that nobody asked for."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import polars as pl

from testbed.audit import losses
from testbed.audit.finding import Finding, missing
from testbed.audit.history import History
from testbed.audit.idle import RATE_TOLERANCE
from testbed.audit.notes import clock, detail, grain_bytes
from testbed.plan import Direction, Plan
from testbed.readable import number, quantity
from testbed.shaping.limits import bucket_bytes
from testbed.units import NS_PER_S

GRAINS = 2
"""How many super-packets the counters may be off at both ends of a stretch together."""

LATE_S = {"virtual": 0.005, "real": 0.05}
"""How late a change may come: timers have a grid of 1 ms."""

Sample = dict[str, Any]
"""A row of the table `links`."""


def judge(plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """Nothing of what the link was not asked for, and all of what it was, as far as the run showed it."""
    yield _settings(direction, tables)
    yield from _changes(plan, direction, tables)
    samples = tables["links"].filter(pl.col("direction") == direction)
    if samples.is_empty():
        yield missing("samples", direction)
        return
    history = History(plan, direction, tables)
    rows = list(samples.iter_rows(named=True))
    size_bytes = grain_bytes(tables, direction)
    yield from _most(direction, history, rows, size_bytes)
    yield from _busy(direction, history, rows, size_bytes)
    yield from _token_bucket(direction, history, rows, size_bytes)
    train = detail(tables, "train", direction)
    told_apart = train is None or bool(train["tells_limit_drops"])
    yield from losses.judge(plan, direction, tables, history, rows, told_apart=told_apart)
    yield from _limit(plan, direction, tables, samples, told_apart=told_apart)


def _settings(direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Finding:
    """Whether the kernel still had what the bench had set, whenever it was asked."""
    noted = detail(tables, "settings", direction)
    if noted is None:
        return missing("settings", direction)
    differences: list[str] = noted["differences"]
    return Finding(
        "settings",
        direction,
        "nobody else to change them",
        "; ".join(differences) if differences else f"as set, {noted['readings']} readings",
        "no difference",
        ok=not differences,
    )


def _changes(plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """How late the latest change of the link came; a run that was broken off may not have had all."""
    due_s = sorted(change.t_ns / NS_PER_S for change in plan.changes if change.direction == direction)
    events = tables["events"].filter((pl.col("kind") == "link_set") & (pl.col("name") == direction))
    came = list(zip(due_s, events["t_s"].drop_nulls().sort(), strict=False))
    if not came:
        return
    late_s, at_s = max((came_s - at_s, at_s) for at_s, came_s in came)
    allowed_s = LATE_S[clock(tables)]
    yield Finding(
        "changes",
        direction,
        f"{len(came)}, each at its time",
        f"change at {number(at_s)} s came {quantity(max(late_s, 0.0), 's')} late",
        f"up to {quantity(allowed_s, 's')}",
        ok=late_s <= allowed_s,
        more="the latest of all",
    )


def _most(direction: Direction, history: History, rows: list[Sample], size_bytes: int) -> Iterator[Finding]:
    """From one sample to the next no more leaves than the rates of that time, and a bucket at both ends."""
    worst: Finding | None = None
    farthest = -1.0
    count = 0
    for before, now in pairwise(rows):
        if now["throughput_bps"] is None:
            continue
        count += 1
        span_s = now["t_s"] - before["t_s"]
        _, most_bits = history.bits(before["t_s"], now["t_s"])
        fastest_bps = max(state.rate_bps for state in history.between(before["t_s"], now["t_s"]))
        slack_bits = 8 * (GRAINS * bucket_bytes(fastest_bps, size_bytes) + size_bytes)
        high_bps = (most_bits * (1 + RATE_TOLERANCE) + slack_bits) / span_s
        off = (now["throughput_bps"] - high_bps) * span_s / most_bits
        if worst is None or off > farthest:
            farthest = off
            worst = Finding(
                "rate in the run",
                direction,
                f"at most {quantity(most_bits / span_s, 'bps', 4)}",
                f"{quantity(now['throughput_bps'], 'bps', 4)} at {number(now['t_s'])} s",
                f"up to {quantity(high_bps, 'bps', 4)}",
                ok=off <= 0,
            )
    if worst is not None:
        yield worst.saying(f"the nearest to its limit of {count} samples")


def _busy(direction: Direction, history: History, rows: list[Sample], size_bytes: int) -> Iterator[Finding]:
    """The stretch that was farthest off, of all in which something surely waited."""
    worst: Finding | None = None
    farthest = -1.0
    looks = 0
    for sample in rows:
        from_s, span_s, busy_bps = sample["busy_from_s"], sample["busy_s"], sample["busy_bps"]
        if from_s is None or not span_s or busy_bps is None:
            continue
        looks += 1
        least, most = (bits / span_s for bits in history.bits(from_s, from_s + span_s))
        grains_bps = GRAINS * size_bytes * 8 / span_s
        low_bps = max(0.0, least * (1 - RATE_TOLERANCE) - grains_bps)
        high_bps = most * (1 + RATE_TOLERANCE) + grains_bps
        off = max(busy_bps - high_bps, low_bps - busy_bps) / most
        if worst is None or off > farthest:
            farthest = off
            worst = Finding(
                "rate while busy",
                direction,
                quantity(most, "bps", 4),
                f"{quantity(busy_bps, 'bps', 4)} at {number(from_s)} s",
                f"{quantity(low_bps, 'bps', 4)} to {quantity(high_bps, 'bps', 4)}",
                ok=off <= 0,
            )
    if worst is not None:
        yield worst.saying(f"the farthest off of {looks} look{'s' * (looks > 1)}")


def _token_bucket(
    direction: Direction, history: History, rows: list[Sample], size_bytes: int
) -> Iterator[Finding]:
    """Since a bucket was filled no more has left than its budget and what it sustains."""
    worst: Finding | None = None
    farthest = -1.0
    sent_bits, since_s, of = 0.0, 0.0, None
    for before, now in pairwise(rows):
        buckets = [state.token_bucket for state in history.between(before["t_s"], now["t_s"])]
        if now["throughput_bps"] is None or buckets[0] is None or any(one != buckets[0] for one in buckets):
            of = None
            continue
        if buckets[0] != of:
            of, since_s, sent_bits = buckets[0], before["t_s"], 0.0
        sent_bits += now["throughput_bps"] * (now["t_s"] - before["t_s"])
        sustained_bits = of.sustained_bps * (now["t_s"] - since_s) * (1 + RATE_TOLERANCE)
        allowed_bits = 8 * (of.budget_bytes + GRAINS * size_bytes) + sustained_bits
        off = (sent_bits - allowed_bits) / allowed_bits
        if worst is None or off > farthest:
            farthest = off
            sustained = quantity(of.sustained_bps, "bps")
            worst = Finding(
                "token bucket",
                direction,
                f"{quantity(of.budget_bytes, 'bytes')}, then {sustained}",
                f"{quantity(sent_bits / 8, 'bytes', 4)} in {number(now['t_s'] - since_s)} s",
                f"up to {quantity(allowed_bits / 8, 'bytes', 4)}",
                ok=off <= 0,
            )
    if worst is not None:
        yield worst


def _limit(
    plan: Plan,
    direction: Direction,
    tables: Mapping[str, pl.DataFrame],
    samples: pl.DataFrame,
    *,
    told_apart: bool,
) -> Iterator[Finding]:
    """A delay stage that is full drops packets that the link would have carried.

    A kernel that does not tell such drops shows only how full the stage was.
    """
    drops = int(samples["limit_drops"].sum())
    counted = tables["counters"].filter((pl.col("direction") == direction) & (pl.col("place") == "delay"))
    if counted.height > 1:
        drops = max(drops, int(counted["overlimits"][-1] - counted["overlimits"][0]))
    full = 0 if told_apart else _fullest(direction, tables, samples)
    if not drops and not full:
        return
    states = [plan.link[direction], *(one.state for one in plan.changes if one.direction == direction)]
    forced = [state.limit_packets for state in states if state.limit_packets is not None]
    longest_s = max(state.delay_ns for state in states) / NS_PER_S
    delay_line = f"the packets in flight over {quantity(longest_s, 's')}"
    yield Finding(
        "limit of the delay stage",
        direction,
        "no packet to be dropped by it",
        f"{drops} dropped" if drops else f"{full} packets in it, as many as it holds,",
        "0",
        ok=False,
        more=f"limit {min(forced)} is below {delay_line}: leave `limit` out, and it is computed"
        if forced
        else f"the bench computes it for {delay_line}, so something else has lowered it",
    )


def _fullest(direction: Direction, tables: Mapping[str, pl.DataFrame], samples: pl.DataFrame) -> int:
    """Packets in the delay stage where a sample found as many as the limit of its time; 0: none did."""
    events = tables["events"].filter((pl.col("kind") == "link_set") & (pl.col("name") == direction))
    known = events.filter(pl.col("t_s").is_not_null()).select("t_s", "detail").rows()
    set_s = [t_s for t_s, _ in known]
    limits = [json.loads(said).get("limit_packets") for _, said in known]
    fullest = 0
    for t_s, flight_packets in samples.select("t_s", "flight_packets").rows():
        last = bisect_right(set_s, t_s) - 1
        if last >= 0 and limits[last] is not None and flight_packets >= limits[last]:
            fullest = max(fullest, flight_packets)
    return fullest
