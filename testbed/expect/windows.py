"""What holds over a window: a statistic in its bounds, a signal that turns seldom and stops swinging."""

from __future__ import annotations

import polars as pl

from testbed import ledger, measure
from testbed.expect import shapes
from testbed.expect.results import (
    allowed_range,
    limited,
    limits,
    missing,
    result,
    stretch,
    times,
    unknown,
    window,
)
from testbed.measure import Tables
from testbed.metrics import FEWEST_PER_CYCLE, METRICS
from testbed.plan import Expectation
from testbed.readable import quantity
from testbed.verdict import Result


def bound(expectation: Expectation, tables: Tables) -> Result:
    """Whether a statistic lies in its bounds."""
    metric = METRICS[expectation.metric]
    from_s, to_s = window(expectation)
    hole = missing(expectation, metric, tables, from_s, to_s)
    if hole:
        return hole
    named, during = expectation.metric, stretch(from_s, to_s)
    allowed = f"(allowed {allowed_range(expectation, metric.unit)})"
    if expectation.tenant is not None:
        named = f"{named} of {expectation.tenant}"
        tables = {**tables, "requests": tables["requests"].filter(pl.col("tenant") == expectation.tenant)}
    without, requests = measure.unserved(metric, tables, from_s, to_s)
    if without and expectation.high is not None:
        sentence = f"{named}: {without} of {requests} requests {during} never got there {allowed}"
        return result(expectation, "FAIL", None, None, sentence)
    if metric.statistic == "violations":
        found = ledger.violations(tables)
        measured = None if found is None else float(len(found))
    else:
        measured = measure.value(metric, tables, from_s, to_s)
    if measured is None:
        return unknown(expectation, f"{expectation.metric} was not measured {during}")
    return limited(expectation, measured, f"{named} was {quantity(measured, metric.unit)} {during} {allowed}")


def stability(expectation: Expectation, tables: Tables) -> Result:
    """Whether a signal turns around seldom enough."""
    metric = METRICS[expectation.metric]
    from_s, to_s = window(expectation)
    hole = missing(expectation, metric, tables, from_s, to_s)
    if hole:
        return hole
    signal = measure.series(metric, tables).within(from_s, to_s)
    if not signal.values:
        return unknown(expectation, f"{expectation.metric} was not measured {stretch(from_s, to_s)}")
    turns = shapes.turning_points(signal.values, expectation.level or 0.0)
    what = f"{expectation.metric} changed direction {times(turns)} {stretch(from_s, to_s)}"
    allowed = limits(expectation, metric).removeprefix("at most ")
    return limited(expectation, float(turns), f"{what} (allowed {allowed})")


def oscillation(expectation: Expectation, tables: Tables) -> Result:
    """Whether a signal does not go on swinging too far."""
    metric = METRICS[expectation.metric]
    from_s, to_s = window(expectation)
    hole = missing(expectation, metric, tables, from_s, to_s)
    if hole:
        return hole
    cycles = expectation.cycles
    assert cycles is not None, "checked by the plan"
    signal = measure.series(metric, tables).within(from_s, to_s)
    seen, needed = shapes.samples(signal), FEWEST_PER_CYCLE * cycles
    during = stretch(from_s, to_s)
    if seen < needed:
        samples = f"{expectation.metric} has {quantity(seen, 'samples')} {during}"
        return unknown(expectation, f"{samples}: too few to see {cycles} cycles, which takes {needed}")
    allowed = f"(allowed {limits(expectation, metric)})"
    found = shapes.cycle(signal, cycles)
    if found is None:
        return limited(expectation, 0.0, f"{expectation.metric} repeated no cycle {during} {allowed}")
    swing = f"by {quantity(found.amplitude, metric.unit)} up and down every {quantity(found.period_s, 's')}"
    return limited(expectation, found.amplitude, f"{expectation.metric} swung {swing} {during} {allowed}")
