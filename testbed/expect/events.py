"""What a signal does after an event: react, come back, come to rest, and not go too far."""

from __future__ import annotations

import math

from testbed import measure
from testbed.expect import shapes
from testbed.expect.results import (
    allowed_range,
    band,
    limited,
    limits,
    margin,
    missing,
    percent,
    result,
    seconds,
    stretch,
    timed,
    unknown,
    window,
    within_s,
)
from testbed.measure import Series, Tables
from testbed.metrics import METRICS, Metric
from testbed.plan import Expectation
from testbed.readable import number, quantity
from testbed.verdict import Result

STILL = 0.25
"""Of a step: who moves by more at the window's end has not come to rest."""


def reaction(expectation: Expectation, tables: Tables, event_s: float) -> Result:
    """Whether the signal crosses its level in time."""
    metric = METRICS[expectation.metric]
    level, allowed_s = expectation.level, within_s(expectation)
    assert level is not None, "checked by the plan"
    signal = measure.series(metric, tables)
    # To the end of the record, so that a late reaction is told from none.
    after = signal.within(event_s, math.inf)
    above = expectation.crosses == "above"
    stood_there = _on_side(signal.last_before(event_s), level, above)
    took_s = _first_crossing(after, level, above, stood_there, event_s)
    crossed = f"crossed {quantity(level, metric.unit)}"
    if took_s is None or took_s > allowed_s:
        # Only where somebody looked all the time can it be said that nothing happened in time.
        hole = missing(expectation, metric, tables, event_s, event_s + allowed_s)
        if hole:
            return hole
    if took_s is not None:
        return timed(expectation, took_s, f"{expectation.metric} {crossed} after {seconds(took_s)}")
    if not after.times_s:
        return unknown(expectation, f"{expectation.metric} was not measured after {number(event_s)} s")
    already = f": it was {expectation.crosses} before the event already" if stood_there else ""
    never = f"{expectation.metric} never {crossed} {stretch(event_s, after.times_s[-1])}{already}"
    return result(expectation, "FAIL", None, None, f"{never} (allowed {seconds(allowed_s)})")


def _first_crossing(
    after: Series, level: float, above: bool, stood_there: bool, event_s: float
) -> float | None:
    """Seconds from the event to the first sample that stands on the wanted side after one that does not."""
    for time_s, value in zip(after.times_s, after.values, strict=True):
        stands_there = _on_side(value, level, above)
        if stands_there and not stood_there:
            return time_s - event_s
        stood_there = stands_there
    return None


def _on_side(value: float | None, level: float, above: bool) -> bool:
    return value is not None and (value >= level if above else value <= level)


def recovery(expectation: Expectation, tables: Tables, event_s: float) -> Result:
    """Whether the signal comes to lie in its range in time, and stays there."""
    metric = METRICS[expectation.metric]
    seen = _seen_after(expectation, metric, tables, event_s)
    if isinstance(seen, Result):
        return seen
    after, held = seen
    low = -math.inf if expectation.low is None else expectation.low
    high = math.inf if expectation.high is None else expectation.high
    allowed = allowed_range(expectation, metric.unit)
    if _always_there(after, held, low, high):
        return unknown(expectation, f"{expectation.metric} never left {allowed}, so it could not come back")
    settled_s = shapes.settled_from(after, low, high)
    if settled_s is None:
        return _still_away(expectation, metric, after, f"did not come back to {allowed}")
    took_s = settled_s - event_s
    return timed(expectation, took_s, f"{expectation.metric} was back to {allowed} after {seconds(took_s)}")


def settling(expectation: Expectation, tables: Tables, event_s: float) -> Result:
    """Whether the signal comes to rest in time, wherever that is, or at its target."""
    metric = METRICS[expectation.metric]
    seen = _seen_after(expectation, metric, tables, event_s)
    if isinstance(seen, Result):
        return seen
    after, held = seen
    middle = shapes.rest(after) if expectation.target is None else expectation.target
    ratio = expectation.band_ratio
    half = expectation.band if ratio is None else ratio * abs(middle)
    assert half is not None, "checked by the plan"
    low, high = middle - half, middle + half
    allowed = band(expectation, metric)
    if expectation.target is None:
        allowed += f" ({quantity(middle, metric.unit)})"
    if _always_there(after, held, low, high):
        return unknown(expectation, f"{expectation.metric} never left {allowed}, so it could not settle")
    settled_s = shapes.settled_from(after, low, high)
    if settled_s is None:
        return _still_away(expectation, metric, after, f"did not settle {allowed}")
    took_s = settled_s - event_s
    return timed(expectation, took_s, f"{expectation.metric} settled {allowed} after {seconds(took_s)}")


def overshoot(expectation: Expectation, tables: Tables, event_s: float) -> Result:
    """Whether the signal stays near enough to the end of its step."""
    metric = METRICS[expectation.metric]
    seen = _seen_after(expectation, metric, tables, event_s)
    if isinstance(seen, Result):
        return seen
    after, start = seen
    if start is None:
        return unknown(
            expectation, f"{expectation.metric} was not measured before the event: a step from where?"
        )
    end = shapes.rest(after) if expectation.target is None else expectation.target
    if end == start:
        stayed = f"{expectation.metric} ended at {quantity(end, metric.unit)}, where it was before the event"
        return unknown(expectation, f"{stayed}: there is no step to go beyond")
    beyond = shapes.overshoot(after.values, start, end)
    moves = shapes.restlessness(after)
    if expectation.target is None and moves > STILL * abs(end - start):
        moved = f"{expectation.metric} did not come to rest: it still moved by {quantity(moves, metric.unit)}"
        return unknown(expectation, f"{moved} at the window's end; give a target, or another `to`")
    step = f"from {quantity(start, metric.unit)} to {quantity(end, metric.unit)}"
    what = f"{expectation.metric} went {percent(beyond)} beyond its step {step}"
    return limited(expectation, beyond, f"{what} (allowed {limits(expectation, metric)})")


def _seen_after(
    expectation: Expectation, metric: Metric, tables: Tables, event_s: float
) -> tuple[Series, float | None] | Result:
    """The signal from the event to the window's end, and what held before; UNKNOWN where samples miss."""
    _, to_s = window(expectation)
    hole = missing(expectation, metric, tables, event_s, to_s)
    if hole:
        return hole
    signal = measure.series(metric, tables)
    after = signal.within(event_s, to_s)
    if not after.times_s:
        return unknown(expectation, f"{expectation.metric} was not measured {stretch(event_s, to_s)}")
    return after, signal.last_before(event_s)


def _always_there(after: Series, held: float | None, low: float, high: float) -> bool:
    seen = after.values if held is None else (held, *after.values)
    return all(margin(value, low, high) >= 0 for value in seen)


def _still_away(expectation: Expectation, metric: Metric, after: Series, what: str) -> Result:
    last = f"it was {quantity(after.values[-1], metric.unit)} at {after.times_s[-1]:.1f} s"
    sentence = f"{expectation.metric} {what}: {last} (allowed {seconds(within_s(expectation))})"
    return result(expectation, "FAIL", None, None, sentence)
