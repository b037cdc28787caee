"""From tables to the value, or the series, of a metric. Pure; definitions are in `metrics`.

Missing data is told apart from zero: a count of rows is 0 only where the table has rows in the window at
all, that is, where something was being recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import polars as pl

from testbed.metrics import Match, Metric

Tables = Mapping[str, pl.DataFrame]

SAMPLED_TABLES = ("links", "decisions")
"""Tables with a row per interval, in which a hole means that telemetry was lost."""
CHANGED_BY = {"pools": ("instance", "pool"), "connections": ("instance",)}
"""Tables with a row per change of something, and what tells these things apart."""
EVENT_TABLES = ("health",)
"""Tables that have no row as long as nothing happens."""
FEWEST_SAMPLES = 2
"""Fewer have no interval between them."""
LARGEST_GAP_INTERVALS = 5
"""Samples may come late, since their writers share one CPU with the traffic; not this late."""
LARGEST_RIM_INTERVALS = 2
"""How much later than the window the first sample may come, or how much earlier the last."""
BITS_PER_BYTE = 8
WIRE_SHARE_CARRIED = 0.9999
"""A bulk transfer is over once this share of its direction's bytes is through: what is left is control
traffic between its end and the next sample."""


@dataclass(frozen=True)
class Series:
    """A signal: values at times, both in the order of time."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    def within(self, from_s: float, to_s: float) -> Series:
        """The part in [from, to)."""
        kept = [
            (time_s, value)
            for time_s, value in zip(self.times_s, self.values, strict=True)
            if from_s <= time_s < to_s
        ]
        return Series(tuple(time_s for time_s, _ in kept), tuple(value for _, value in kept))

    def last_before(self, t_s: float) -> float | None:
        """The value that held just before `t_s`."""
        earlier = [value for time_s, value in zip(self.times_s, self.values, strict=True) if time_s < t_s]
        return earlier[-1] if earlier else None


def series(metric: Metric, tables: Tables) -> Series:
    """All of a signal, nulls left out."""
    if metric.counted:
        return _per_second(metric, tables)
    rows = _matching(tables[metric.table], metric.where).filter(
        pl.col(metric.column).is_not_null() & pl.col(metric.time).is_not_null()
    )
    return Series(
        tuple(rows[metric.time].to_list()), tuple(float(value) for value in rows[metric.column].to_list())
    )


def value(metric: Metric, tables: Tables, from_s: float, to_s: float) -> float | None:
    """The statistic over the rows in [from, to); None when nothing was measured there."""
    recorded = _within(metric, tables, from_s, to_s)
    rows = _matching(recorded, metric.where)
    ran = metric.table in EVENT_TABLES and "start" in tables["events"]["kind"]
    if metric.statistic in {"count", "share", "rate"}:
        counted = _matching(rows, metric.counted).height
        nothing = {"count": recorded, "share": rows, "rate": tables[metric.table]}[
            metric.statistic
        ].is_empty() and not ran
        per = {"count": 1.0, "share": rows.height, "rate": to_s - from_s}[metric.statistic]
        return None if nothing else counted / per
    if metric.statistic == "sum_share":
        return _sum_share(metric, rows)
    if metric.statistic == "steady_goodput":
        return _steady_goodput_bps(rows, tables)
    if metric.statistic == "end_sum":
        ever = _matching(tables[metric.table], metric.where)
        rows = ever.group_by(*CHANGED_BY[metric.table], maintain_order=True).last()
    column = rows[metric.column].drop_nulls().cast(pl.Float64)
    if metric.statistic == "sum" and rows.is_empty():
        # Nothing matched: truly nothing, if the table was recorded and is not an instrument's own.
        return None if recorded.is_empty() or metric.table in SAMPLED_TABLES else 0.0
    if column.is_empty():
        return None if recorded.is_empty() and not ran else metric.otherwise
    return _STATISTICS[metric.statistic](column)


def _within(metric: Metric, tables: Tables, from_s: float, to_s: float) -> pl.DataFrame:
    """The rows in [from, to), and those before whose values still held then."""
    table, time_s = tables[metric.table], pl.col(metric.time)
    inside = table.filter((time_s >= from_s) & (time_s < to_s))
    if metric.table not in CHANGED_BY:
        return inside
    before = table.filter(time_s < from_s).group_by(*CHANGED_BY[metric.table], maintain_order=True).last()
    return pl.concat([before.select(table.columns), inside])


def _per_second(metric: Metric, tables: Tables) -> Series:
    """How many rows are counted in each second, known at its end; to the last row of all."""
    rows = _matching(tables[metric.table], metric.where).filter(pl.col(metric.time) >= 0)
    if rows.is_empty():
        return Series((), ())
    counts = [0] * (int(rows[metric.time].max()) + 1)  # type: ignore[arg-type]
    for time_s in _matching(rows, metric.counted)[metric.time].to_list():
        counts[int(time_s)] += 1
    return Series(tuple(float(second + 1) for second in range(len(counts))), tuple(map(float, counts)))


def _sum_share(metric: Metric, rows: pl.DataFrame) -> float | None:
    both = rows.filter(pl.col(metric.column).is_not_null() & pl.col(metric.whole).is_not_null())
    whole = float(both[metric.whole].sum())
    return float(both[metric.column].sum()) / whole if whole else None


def unserved(metric: Metric, tables: Tables, from_s: float, to_s: float) -> tuple[int, int]:
    """For a time of requests: how many of those in [from, to) have none, and how many there are.

    A request that failed before its first token was not quick; leaving it out would make it so.
    """
    if metric.table != "requests" or metric.unit != "s":
        return 0, 0
    rows = tables["requests"].filter((pl.col(metric.time) >= from_s) & (pl.col(metric.time) < to_s))
    rows = _matching(rows, metric.where)
    return rows[metric.column].null_count(), rows.height


def hole(metric: Metric, tables: Tables, from_s: float, to_s: float) -> tuple[float, float] | None:
    """The first stretch of [from, to) in which samples are missing; None where there is no such stretch.

    Only for tables that are sampled: between two requests nothing needs to be recorded. A sample without
    a value counts, since it shows that somebody looked.
    """
    if metric.table not in SAMPLED_TABLES:
        return None
    # A run may end before its window does, once every request has ended; nothing is missing after that.
    ends = tables["events"].filter(pl.col("kind") == "end")["t_s"].drop_nulls().to_list()
    to_s = min([to_s, *ends])
    times = _matching(tables[metric.table], metric.where)[metric.time].drop_nulls().to_list()
    if len(times) < FEWEST_SAMPLES:
        return (from_s, to_s)
    interval_s = median(after - before for before, after in pairwise(times))
    if times[0] - from_s > LARGEST_RIM_INTERVALS * interval_s:
        return (from_s, min(times[0], to_s))
    for before, after in pairwise(times):
        if after - before > LARGEST_GAP_INTERVALS * interval_s and after > from_s and before < to_s:
            return (max(before, from_s), min(after, to_s))
    if to_s - times[-1] > LARGEST_RIM_INTERVALS * interval_s:
        return (max(times[-1], from_s), to_s)
    return None


def _matching(rows: pl.DataFrame, pairs: Match) -> pl.DataFrame:
    for column, wanted in pairs:
        rows = rows.filter(pl.col(column) == wanted)
    return rows


def _percentile(share: float) -> Callable[[pl.Series], float]:
    def of(column: pl.Series) -> float:
        found = column.quantile(share, interpolation="linear")
        assert found is not None, "the column is not empty"
        return float(found)

    return of


_STATISTICS: dict[str, Callable[[pl.Series], float]] = {
    "mean": lambda column: float(column.mean()),  # type: ignore[arg-type]
    "min": lambda column: float(column.min()),  # type: ignore[arg-type]
    "max": lambda column: float(column.max()),  # type: ignore[arg-type]
    "sum": lambda column: float(column.sum()),
    "end_sum": lambda column: float(column.sum()),
    "p50": _percentile(0.5),
    "p90": _percentile(0.9),
    "p99": _percentile(0.99),
}


def _steady_goodput_bps(bulk: pl.DataFrame, tables: Tables) -> float | None:
    """The lowest steady rate of all transfers in `bulk`; None if one of them cannot be measured.

    Bytes on the wire are not told apart by transfer, so one that shared the WAN with another, in either
    direction, cannot be.
    """
    rates = [
        None
        if _shared(start_s, end_s, tables["transfers"])
        else _second_half_bps(size_bytes, start_s, end_s, tables["links"])
        for size_bytes, start_s, end_s in bulk.select("size_bytes", "start_s", "end_s").iter_rows()
    ]
    measured = [rate for rate in rates if rate is not None]
    return min(measured) if measured and len(measured) == len(rates) else None


def _shared(start_s: float, end_s: float | None, transfers: pl.DataFrame) -> bool:
    """Whether more than one transfer over the WAN was under way at some moment of [start, end)."""
    began = pl.col("start_s") < (math.inf if end_s is None else end_s)
    lasted = pl.col("end_s").is_null() | (pl.col("end_s") > start_s)
    return transfers.filter(pl.col("wan") & began & lasted).height > 1


def _second_half_bps(
    size_bytes: int, start_s: float, end_s: float | None, links: pl.DataFrame
) -> float | None:
    """Payload rate over the second half of a transfer's bytes on the wire.

    Wire bytes since the transfer's start are known at samples and linear between them; its direction is
    the one that carried more. The last byte left the rate stage one delay before it arrived, and no later
    than the sample at which all bytes were through.
    """
    if end_s is None:
        return None
    by_direction = [
        _wire_bytes(links.filter(pl.col("direction") == direction), start_s, end_s)
        for direction in ("a_to_b", "b_to_a")
    ]
    times_s, wire_bytes, delay_s = max(by_direction, key=lambda progress: progress[1][-1])
    total = wire_bytes[-1]
    inside = sum(start_s < time_s < end_s for time_s in times_s)
    if total <= 0 or inside < FEWEST_SAMPLES:
        return None
    half_s = _moment(times_s, wire_bytes, total / 2)
    through_s = next(
        time_s
        for time_s, carried in zip(times_s, wire_bytes, strict=True)
        if carried >= total * WIRE_SHARE_CARRIED
    )
    last_s = min(through_s, end_s - delay_s)
    return None if last_s <= half_s else BITS_PER_BYTE * size_bytes / 2 / (last_s - half_s)


def _wire_bytes(
    samples: pl.DataFrame, start_s: float, end_s: float
) -> tuple[list[float], list[float], float]:
    """Times, bytes on the wire since the start, and the one-way delay, to the first sample after the end."""
    times_s, carried_bytes, delay_s = [start_s], [0.0], 0.0
    columns = samples.select("t_s", "throughput_bps", "delay_s").iter_rows()
    previous_s: float | None = None
    for t_s, throughput_bps, delay in columns:
        if t_s > start_s and throughput_bps is not None and previous_s is not None:
            # The first sample's bytes may lie before the start, but the link was idle then.
            carried_bytes.append(carried_bytes[-1] + throughput_bps * (t_s - previous_s) / BITS_PER_BYTE)
            times_s.append(t_s)
            delay_s = delay
        previous_s = t_s
        if t_s >= end_s:
            break
    return times_s, carried_bytes, delay_s


def _moment(times_s: list[float], carried: list[float], wanted: float) -> float:
    """When `carried` reaches `wanted`, linear between samples."""
    for (before_s, before), (after_s, after) in pairwise(zip(times_s, carried, strict=True)):
        if after >= wanted:
            return before_s + (after_s - before_s) * (wanted - before) / (after - before)
    raise AssertionError("wanted lies within what was carried")
