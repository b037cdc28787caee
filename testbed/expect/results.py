"""What is said of an expectation: its result, with what was measured and what was allowed, in words."""

from __future__ import annotations

import polars as pl

from testbed import measure
from testbed.measure import Tables
from testbed.metrics import METRICS, Metric
from testbed.plan import Expectation
from testbed.readable import number, quantity
from testbed.units import NS_PER_S
from testbed.verdict import Result, Status

SHORTEST_SHOWN_S = 0.001
UNITS = {
    "stability": "changes", "reaction": "s", "recovery": "s", "settling": "s", "overshoot": "ratio",
    "fairness": "ratio", "oracle": "ratio",
}  # fmt: skip
"""The unit of what was measured; other kinds measure in that of their metric."""


def timed(expectation: Expectation, took_s: float, what: str) -> Result:
    """PASS when it took no longer than allowed."""
    allowed_s = within_s(expectation)
    return result(
        expectation,
        "PASS" if took_s <= allowed_s else "FAIL",
        took_s,
        allowed_s - took_s,
        f"{what} (allowed {seconds(allowed_s)})",
    )


def limited(expectation: Expectation, measured: float, what: str) -> Result:
    """PASS when the measured value lies between the expectation's limits, both included."""
    distance = margin(measured, expectation.low, expectation.high)
    return result(expectation, "PASS" if distance >= 0 else "FAIL", measured, distance, what)


def missing(
    expectation: Expectation, metric: Metric, tables: Tables, from_s: float, to_s: float
) -> Result | None:
    """UNKNOWN when samples are missing in [from, to)."""
    hole = measure.hole(metric, tables, from_s, to_s)
    return unknown(expectation, f"{expectation.metric} has no samples {stretch(*hole)}") if hole else None


def unknown(expectation: Expectation, why: str) -> Result:
    """UNKNOWN, for want of a measurement."""
    return result(expectation, "UNKNOWN", None, None, why)


def result(
    expectation: Expectation, status: Status, measured: float | None, distance: float | None, sentence: str
) -> Result:
    """A result; `measured` and `distance`, the margin, in the kind's unit."""
    metric = METRICS[expectation.metric]
    return Result(
        name=expectation.name,
        kind=expectation.kind,
        metric=expectation.metric,
        status=status,
        measured=measured,
        unit=UNITS.get(expectation.kind, metric.unit),
        bound=_allowed(expectation, metric),
        margin=distance,
        sentence=sentence,
        line=expectation.line,
    )


def _allowed(expectation: Expectation, metric: Metric) -> str:
    kind, during = expectation.kind, stretch(*window(expectation))
    after = f"of {expectation.event}"
    if expectation.within_ns is not None:
        after = f"within {seconds(within_s(expectation))} {after}"
    if kind == "reaction":
        return f"{expectation.crosses} {quantity(expectation.level or 0, metric.unit)} {after}"
    if kind == "recovery":
        return f"{allowed_range(expectation, metric.unit)} {after}"
    if kind == "settling":
        return f"{band(expectation, metric)} {after}"
    limit = limits(expectation, metric)
    if kind == "stability":
        return limit
    return f"{limit} {f'after {expectation.event}' if kind == 'overshoot' else during}"


def limits(expectation: Expectation, metric: Metric) -> str:
    """What is allowed, without the time: `at most 20 %`."""
    low, high = expectation.low, expectation.high or 0.0
    match expectation.kind:
        case "stability":
            return f"at most {times(high)}{ignoring(expectation, metric)}"
        case "overshoot":
            return f"at most {percent(high)}"
        case "oscillation":
            return f"at most {quantity(high, metric.unit)} for {expectation.cycles} cycles"
        case "fairness":
            return f"at most {number(high)} times the smallest" if low is None else f"at least {number(low)}"
        case "oracle":
            return f"at least {percent(low or 0.0)}"
    return allowed_range(expectation, metric.unit)


def event_time(expectation: Expectation, tables: Tables) -> float | None:
    """When the event took place, which is what was recorded, not what was planned."""
    events = tables["events"].filter((pl.col("kind") == "event") & (pl.col("name") == expectation.event))
    recorded = events["t_s"].drop_nulls().to_list()
    return float(recorded[0]) if recorded else None


def window(expectation: Expectation) -> tuple[float, float]:
    """From when to when, in seconds."""
    return expectation.from_ns / NS_PER_S, expectation.to_ns / NS_PER_S


def within_s(expectation: Expectation) -> float:
    """The time allowed after the event, in seconds."""
    assert expectation.within_ns is not None, "checked by the plan"
    return expectation.within_ns / NS_PER_S


def margin(value: float, low: float | None, high: float | None) -> float:
    """Distance to the nearest bound, negative outside; infinite without bounds."""
    return min(
        value - low if low is not None else float("inf"), high - value if high is not None else float("inf")
    )


def allowed_range(expectation: Expectation, unit: str) -> str:
    """`exactly 3 requests`, `18,000 to 21,000 tokens`, `at most 2 s`."""
    low, high = expectation.low, expectation.high
    if low is not None and high is not None:
        if low == high:
            return f"exactly {quantity(low, unit)}"
        return f"{_shared_unit(low, high, unit)} to {quantity(high, unit)}"
    if low is not None:
        return f"at least {quantity(low, unit)}"
    return f"at most {quantity(high, unit)}" if high is not None else "anything"


def band(expectation: Expectation, metric: Metric) -> str:
    """`within 5 % of its end`, `within 500 tokens of 25,000 tokens`."""
    ratio, width, target = expectation.band_ratio, expectation.band or 0.0, expectation.target
    wide = quantity(width, metric.unit) if ratio is None else percent(ratio)
    return f"within {wide} of {'its end' if target is None else quantity(target, metric.unit)}"


def ignoring(expectation: Expectation, metric: Metric) -> str:
    """Which moves do not count."""
    return f", moves under {quantity(expectation.level, metric.unit)} ignored" if expectation.level else ""


def stretch(from_s: float, to_s: float) -> str:
    """`from 30 to 75 s`."""
    return f"from {number(from_s)} to {number(to_s)} s"


def seconds(duration_s: float) -> str:
    """A time that is never shown as 0."""
    return quantity(duration_s, "s") if duration_s >= SHORTEST_SHOWN_S else "less than 1 ms"


def times(count: float) -> str:
    """`once`, `3 times`."""
    return "once" if count == 1 else f"{number(count)} times"


def percent(ratio: float) -> str:
    """0.125 -> `12.5 %`."""
    return f"{number(100 * ratio)} %"


def _shared_unit(low: float, high: float, unit: str) -> str:
    """`low` without its unit where `high` has the same: 18,000 to 21,000 tokens."""
    low_text, high_text = quantity(low, unit), quantity(high, unit)
    low_number, _, low_unit = low_text.partition(" ")
    return low_number if low_unit == high_text.partition(" ")[2] else low_text
