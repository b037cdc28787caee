"""What the samples of the run say: rate while busy, packets lost, drops that nobody asked for."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

import polars as pl

from testbed.audit import chance
from testbed.audit.finding import Finding, missing
from testbed.audit.idle import RATE_TOLERANCE, detail
from testbed.plan import Direction, LinkState, Loss, Plan
from testbed.readable import number, quantity

NS_PER_S = 1_000_000_000
GRAINS = 2
"""How many super-packets the counters may be off at both ends of a stretch together."""
STRAYS = 10
"""Address resolution passes the delay stage without having passed the rate stage, and the other way round."""


def judge(plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """Nothing of what the link was not asked for, and all of what it was, as far as the run showed it."""
    yield _settings(direction, tables)
    samples = tables["links"].filter(pl.col("direction") == direction)
    if samples.is_empty():
        yield missing("samples", direction)
        return
    steady = list(_steady(plan, direction, tables, samples))
    yield from _busy(direction, tables, steady)
    train = detail(tables, "train", direction)
    told_apart = train is None or train["tells_limit_drops"]
    yield from _losses(
        direction,
        steady,
        told_apart=told_apart,
        grain_packets=-(-_grain_bytes(direction, tables) // plan.mtu_bytes),
    )
    yield from _limit(plan, direction, tables, samples)


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


def _steady(
    plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame], samples: pl.DataFrame
) -> Iterator[tuple[LinkState, dict[str, float | None]]]:
    """The samples since whose predecessor the link was in one state, with that state."""
    changes = [change for change in plan.changes if change.direction == direction]
    changes.sort(key=lambda change: change.t_ns)
    set_s = _set_times(tables, direction)
    # A change is under way from its planned moment until it is noted.
    begun_s = [change.t_ns / NS_PER_S for change, _ in zip(changes, set_s, strict=False)]
    for before, now in pairwise(samples.iter_rows(named=True)):
        last = bisect_right(begun_s, now["t_s"]) - 1
        if last >= 0 and set_s[last] <= before["t_s"]:
            yield changes[last].state, now


def _set_times(tables: Mapping[str, pl.DataFrame], direction: Direction) -> list[float]:
    events = tables["events"].filter((pl.col("kind") == "link_set") & (pl.col("name") == direction))
    return [float(t_s) for t_s in events["t_s"].drop_nulls()]


def _busy(
    direction: Direction,
    tables: Mapping[str, pl.DataFrame],
    steady: list[tuple[LinkState, dict[str, float | None]]],
) -> Iterator[Finding]:
    """The stretch that was farthest off, of all in which something surely waited."""
    grain_bytes = _grain_bytes(direction, tables)
    worst: Finding | None = None
    farthest = -1.0
    looks = 0
    for state, sample in steady:
        busy_s, busy_bps = sample["busy_s"], sample["busy_bps"]
        if busy_s is None or busy_bps is None:
            continue
        looks += 1
        grains_bps = GRAINS * grain_bytes * 8 / busy_s
        slowest_bps = state.token_bucket.sustained_bps if state.token_bucket else state.rate_bps
        if state.flow_cap_bps is not None:
            slowest_bps = 0  # flows at their cap wait, and the link does not
        low_bps = max(0.0, slowest_bps * (1 - RATE_TOLERANCE) - grains_bps)
        high_bps = state.rate_bps * (1 + RATE_TOLERANCE) + grains_bps
        off = max(busy_bps - high_bps, low_bps - busy_bps) / state.rate_bps
        if worst is None or off > farthest:
            farthest = off
            worst = Finding(
                "rate while busy",
                direction,
                quantity(state.rate_bps, "bps"),
                f"{quantity(busy_bps, 'bps', 4)} at {number(sample['t_s'] or 0)} s",
                f"{quantity(low_bps, 'bps', 4)} to {quantity(high_bps, 'bps', 4)}",
                ok=off <= 0,
            )
    if worst is not None:
        yield Finding(
            worst.what, direction, worst.asked, worst.measured, worst.allowed, ok=worst.ok,
            more=f"the farthest off of {looks} looks",
        )  # fmt: skip


def _grain_bytes(direction: Direction, tables: Mapping[str, pl.DataFrame]) -> int:
    """The largest super-packet, by which counters move."""
    noted = detail(tables, "calibration", direction)
    return int(noted["grain_bytes"]) if noted else 0


def _losses(
    direction: Direction,
    steady: list[tuple[LinkState, dict[str, float | None]]],
    *,
    told_apart: bool,
    grain_packets: int,
) -> Iterator[Finding]:
    """Packets that the delay stage took, for each loss process that was in force.

    `told_apart`: the kernel counts drops by the stage's limit elsewhere, so that they are not among them.
    """
    counted: dict[tuple[Loss | None, float, bool], list[int]] = defaultdict(lambda: [0, 0])
    for state, sample in steady:
        sent, lost = sample["sent_packets"], sample["lost_packets"]
        if sent is not None and lost is not None:
            total = counted[state.loss, state.duplicate, state.partitioned]
            total[0] += int(sent)
            total[1] += int(lost)
    for (loss, duplicate, partitioned), (sent, lost) in counted.items():
        if not sent and not lost:
            continue
        if partitioned:
            chain, asked = chance.coin(1.0), "everything"
        elif loss is None or loss.model == "periodic":  # every n-th is taken before the delay stage
            chain, asked = chance.coin(0.0), "0"
        else:
            chain = chance.thinned(chance.losses(loss), 1 - duplicate)
            asked = f"{number(chance.lost_in_the_long_run(loss))} {loss.model.replace('_', ' ')}"
        # both stages are read one after the other, and a super-packet may pass in between
        low, _ = chance.interval(max(0, sent - grain_packets), chain)
        _, high = chance.interval(sent + grain_packets, chain)
        if partitioned:
            low, high = max(0, low - STRAYS), high + STRAYS
        yield Finding(
            "partition in the run" if partitioned else "loss in the run",
            direction,
            asked,
            f"{lost} of {sent}",
            str(low) if low == high else f"{low} to {high}",
            ok=low <= lost <= high,
            more="" if told_apart else "with this kernel drops by the delay stage's limit count as lost",
        )


def _limit(
    plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame], samples: pl.DataFrame
) -> Iterator[Finding]:
    """A delay stage that is full drops packets that the link would have carried."""
    drops = int(samples["limit_drops"].sum())
    counted = tables["counters"].filter((pl.col("direction") == direction) & (pl.col("place") == "delay"))
    if counted.height > 1:
        drops = max(drops, int(counted["overlimits"][-1] - counted["overlimits"][0]))
    settings = tables["events"].filter((pl.col("kind") == "link_set") & (pl.col("name") == direction))
    limits = [json.loads(text).get("limit_packets") for text in settings["detail"]]
    known = [limit for limit in limits if limit is not None]
    most = int(samples["flight_packets"].max() or 0)  # type: ignore[arg-type]
    full = bool(known) and most >= min(known)
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
        f"{drops} dropped" if drops else f"{most} packets in it, as many as it holds,",
        "0",
        ok=False,
        more=f"limit {min(forced)} is below {delay_line}: leave `limit` out, and it is computed"
        if forced
        else f"the bench computes it for {delay_line}, so something else has lowered it",
    )
