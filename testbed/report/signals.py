"""From the record's tables to the series that the charts draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import polars as pl

from testbed.plan import DIRECTIONS, Plan
from testbed.report.svg import TimeAxis
from testbed.units import NS_PER_S

Tables = Mapping[str, pl.DataFrame]
Points = tuple[list[float], list[float | None]]

MOST_POINTS = 3_000
"""More than the pixels of a chart's width make the page heavy and no clearer."""


def time_axis(plan: Plan, tables: Tables) -> TimeAxis:
    """From t0 to the end of the workload, or of what it left to do."""
    ends = [plan.duration_ns / NS_PER_S]
    for table, column in (("requests", "first_token_s"), ("transfers", "end_s")):
        last = tables[table][column].max()
        if isinstance(last, float):
            ends.append(last)
    recorded = tables["events"].filter(pl.col("kind") == "event").select("t_s", "name")
    to_s = max(ends)
    return TimeAxis(
        from_s=0.0,
        to_s=to_s,
        events=tuple((t_s, name) for t_s, name in recorded.iter_rows() if 0 <= t_s <= to_s),
        shaded=merged([*trouble(plan, to_s), *fault_spans(tables["faults"])], to_s),
    )


def trouble(plan: Plan, end_s: float) -> tuple[tuple[float, float], ...]:
    """The intervals in which a direction of the link is not what it was at the start, merged."""
    spans: list[tuple[float, float]] = []
    for direction in DIRECTIONS:
        since: float | None = None
        for change in sorted(plan.changes, key=lambda change: change.t_ns):
            if change.direction != direction:
                continue
            t_s = change.t_ns / NS_PER_S
            if change.state == plan.link[direction]:
                spans += [(since, t_s)] if since is not None else []
                since = None
            elif since is None:
                since = t_s
        if since is not None:
            spans.append((since, end_s))
    return merged(spans, end_s)


def fault_spans(faults: pl.DataFrame) -> list[tuple[float, float | None]]:
    """When each fault began and ended, if it did; those that take no time are left out."""
    return faults.filter(pl.col("fault") != "corrupt").select("t_s", "end_s").rows()


def merged(spans: Sequence[tuple[float, float | None]], end_s: float) -> tuple[tuple[float, float], ...]:
    """Spans that overlap as one, none of them beyond the end; what did not end lasts to it."""
    found: list[tuple[float, float]] = []
    for start, end in sorted((start, end_s if end is None else end) for start, end in spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return tuple((start, min(end, end_s)) for start, end in found if start < end_s)


def samples(table: pl.DataFrame, column: str, scale: float = 1.0, until_s: float = math.inf) -> Points:
    """A column over time in other units, thinned to what can be seen; nulls stay."""
    kept = table.filter((pl.col("t_s") >= 0) & (pl.col("t_s") <= until_s)).select("t_s", column)
    bundle = -(-kept.height // MOST_POINTS)
    if bundle > 1:
        rows = pl.int_range(pl.len()) // bundle
        kept = kept.group_by(rows.alias("row"), maintain_order=True).agg(
            pl.col("t_s").last(), pl.col(column).mean()
        )
    values = [None if value is None else value * scale for value in kept[column].to_list()]
    return kept["t_s"].to_list(), values


def mean_per(table: pl.DataFrame, column: str, width_s: float, scale: float) -> Points:
    """Means over bins of `width_s`, each at the end of its bin."""
    return _binned(table, pl.col(column).mean() * scale, width_s)


def sum_per(table: pl.DataFrame, column: str, width_s: float, scale: float) -> Points:
    """Sums over bins of `width_s`, per second, each at the end of its bin."""
    return _binned(table, pl.col(column).sum() * scale / width_s, width_s)


def _binned(table: pl.DataFrame, value: pl.Expr, width_s: float) -> Points:
    bins = (
        table.filter(pl.col("t_s") >= 0)
        .group_by((pl.col("t_s") / width_s).floor().alias("bin"), maintain_order=True)
        .agg(value.alias("value"))
        .sort("bin")
    )
    return [(number + 1) * width_s for number in bins["bin"].to_list()], bins["value"].to_list()


def total(pools: pl.DataFrame, pool: str, scale: float) -> Points:
    """What all pools of a kind hold together, after each change of one of them."""
    held: dict[str, int] = {}
    times_s: list[float] = []
    sums: list[float | None] = []
    chosen = pools.filter(pl.col("pool") == pool).select("t_s", "instance", "held_bytes")
    for t_s, instance, held_bytes in chosen.iter_rows():
        held[instance] = held_bytes
        times_s.append(t_s)
        sums.append(sum(held.values()) * scale)
    every = max(1, -(-len(sums) // MOST_POINTS))
    return times_s[::-1][::every][::-1], sums[::-1][::every][::-1]


def retransmitted(tcp: pl.DataFrame, use: str | None = None) -> pl.DataFrame:
    """Bytes sent again since the previous sample of the same socket, with columns t_s and bytes.

    Of all sockets, or of those of one use.

    A counter that fell belongs to a new socket on the same ports: all it shows is new.
    """
    socket = ["host", "local", "remote"]
    delta = pl.col("bytes_retrans").diff().over(socket)
    chosen = tcp if use is None else tcp.filter(pl.col("use") == use)
    return chosen.select(
        "t_s",
        pl.when(delta.is_null() | (delta < 0)).then(pl.col("bytes_retrans")).otherwise(delta).alias("bytes"),
    )


def moving(
    times_s: list[float], values: list[float], width_s: float, statistic: Callable[[list[float]], float]
) -> Points:
    """A statistic over the values of the last `width_s`, at every value, or every n-th of very many.

    Needs times in order.
    """
    found: list[float | None] = []
    first = 0
    every = max(1, -(-len(times_s) // MOST_POINTS))
    chosen = range(len(times_s))[::-1][::every][::-1]
    for index in chosen:
        while times_s[first] < times_s[index] - width_s:
            first += 1
        found.append(statistic(values[first : index + 1]))
    return [times_s[index] for index in chosen], found


def percentile(share: float) -> Callable[[list[float]], float]:
    """A percentile with linear interpolation."""

    def of(values: list[float]) -> float:
        ordered = sorted(values)
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    return of


def in_state(spans: Sequence[tuple[float | None, float | None]], until_s: float) -> Points:
    """How many of the spans are open at each moment; an unknown end is open for ever."""
    changes: dict[float, int] = {0.0: 0}
    for start, end in spans:
        if start is None:
            continue
        changes[start] = changes.get(start, 0) + 1
        if end is not None:
            changes[end] = changes.get(end, 0) - 1
    times = sorted(changes)
    counts: list[float | None] = []
    now = 0
    for t_s in times:
        now += changes[t_s]
        counts.append(float(now))
    if times[-1] < until_s:
        times.append(until_s)
        counts.append(float(now))
    return times, counts


def phases(axis: TimeAxis) -> list[tuple[str, float, float]]:
    """The run cut at its first and last trouble: (name, from, to)."""
    if not axis.shaded:
        return [("whole run", axis.from_s, axis.to_s)]
    start, end = axis.shaded[0][0], axis.shaded[-1][1]
    cut = [("before", axis.from_s, start), ("trouble", start, end), ("after", end, axis.to_s)]
    return [(name, from_s, to_s) for name, from_s, to_s in cut if to_s > from_s]


def steps_only(points: Points) -> Points:
    """A step series without the samples in which nothing changed."""
    times_s, values = points
    if not times_s:
        return points
    changed = [
        index + 1
        for index, (before, after) in enumerate(pairwise(values))
        if before != after or index + 2 == len(values)
    ]
    kept = [0, *changed]
    return [times_s[index] for index in kept], [values[index] for index in kept]
