"""What a sweep measured: one row for each point and seed, as results.parquet and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from testbed import measure, tables
from testbed.metrics import METRICS
from testbed.plan import Plan
from testbed.sweep.cache import Points
from testbed.sweep.file import Wanted
from testbed.sweep.outcome import Row
from testbed.sweep.points import Axis, Point, as_text
from testbed.units import NS_PER_S
from testbed.verdict import CHECKS, Verdict


@dataclass(frozen=True)
class Measure:
    """A column: a metric over a window, or (without a window) what an expectation measured, by its number."""

    name: str
    metric: str
    window_s: tuple[float, float] | None = None
    expectation: int = 0


@dataclass(frozen=True)
class Result:
    """One run of a sweep and what it came to; `measured` by the name of the measure."""

    point: Point
    seed: int
    digest: str
    row: Row
    measured: dict[str, float | None] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)


def measures(wanted: Wanted, plan: Plan) -> list[Measure]:
    """Those that the sweep file names, else what each of the scenario's expectations measures."""
    if not wanted.file.measure:
        return [Measure(one.name, one.metric, None, number) for number, one in enumerate(plan.expectations)]
    return [
        Measure(
            one.name,
            one.metric,
            (one.start / NS_PER_S, (plan.duration_ns if one.to is None else one.to) / NS_PER_S),
        )
        for one in wanted.file.measure
    ]


def with_measures(found: Result, points: Points, wanted: Sequence[Measure]) -> Result:
    """The result with all that was measured; in a run that cannot be trusted that is nothing."""
    if found.row.status == "UNKNOWN":
        return found
    verdict = points.verdict(found.digest)
    record = tables.load(points.run(found.digest)) if any(one.window_s for one in wanted) else {}
    measured, units = {}, {}
    for one in wanted:
        measured[one.name], units[one.name] = _measured(one, verdict, record)
    return replace(found, measured=measured, units=units)


def _measured(one: Measure, verdict: Verdict, record: measure.Tables) -> tuple[float | None, str]:
    """The value and its unit. A time that some requests never got to has none: it would look short."""
    if one.window_s is None:
        found = [result for result in verdict.results if result.kind not in CHECKS][one.expectation]
        return found.measured, found.unit
    metric = METRICS[one.metric]
    without, _ = measure.unserved(metric, record, *one.window_s)
    return None if without else measure.value(metric, record, *one.window_s), metric.unit


def frame(axes: Sequence[Axis], results: Sequence[Result], wanted: Sequence[Measure]) -> pl.DataFrame:
    """A column for each parameter, as written; for a quantity with a unit another one, in its base unit."""
    columns: dict[str, Any] = {}
    for number, axis in enumerate(axes):
        values = [one.point[number] for one in results]
        plain = (
            axis.kind is not None
            and not axis.kind.unit
            and all(isinstance(value, int | float) for value in values)
        )
        columns[axis.path] = pl.Series(
            values if plain else [as_text(value) for value in values],
            dtype=pl.Float64 if plain else pl.String,
            strict=False,
        )
        if axis.kind is not None and axis.kind.unit:
            numbers = [axis.kind.parse(value) for value in values]
            columns[f"{axis.path}.{axis.kind.unit}"] = pl.Series(numbers, dtype=pl.Float64)
    columns |= {
        "seed": pl.Series([one.seed for one in results], dtype=pl.Int64),
        "status": pl.Series([one.row.status for one in results], dtype=pl.String),
    }
    for one in wanted:
        measured = [result.measured.get(one.name) for result in results]
        columns[one.name] = pl.Series(measured, dtype=pl.Float64)
    columns |= {
        "failed": pl.Series(["; ".join(one.row.failed) for one in results], dtype=pl.String),
        "digest": pl.Series([one.digest for one in results], dtype=pl.String),
        "record_digest": pl.Series([one.row.record_digest for one in results], dtype=pl.String),
        "virtual_s": pl.Series([one.row.virtual_s for one in results], dtype=pl.Float64),
        "wall_s": pl.Series([one.row.wall_s for one in results], dtype=pl.Float64),
        "command": pl.Series([one.row.command for one in results], dtype=pl.String),
    }
    return pl.DataFrame(columns)
