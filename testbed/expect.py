"""From the record to the verdict. Pure: everything it knows stands in the plan and in the tables.

How the kinds are judged:

bound      The statistic over the window lies in [low, high], both ends included.
reaction   From the event to the end of the record, the first sample that stands on the wanted side of `level`
           (the level itself included) after one that does not. The value that held before the event counts
           as such a sample: a signal that stood there already did not react. One without an earlier value
           did not stand there.
recovery   From the event on, the first sample from which all samples until the window's end lie in
           [low, high], both ends included. A signal that was in there from just before the event on has
           nothing to recover from: UNKNOWN.
stability  Turning points of the signal in the window, where only a move of at least `level` away from the
           last extreme turns it.

What was not measured is UNKNOWN, never PASS: no rows, an event that never came, samples missing for
several intervals in the time that decides.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import polars as pl

from testbed import answers, audit, endings, ledger, measure
from testbed.measure import Series, Tables
from testbed.metrics import METRICS, Metric
from testbed.plan import Expectation, Plan
from testbed.readable import number, quantity
from testbed.rundir import RunDir
from testbed.units import NS_PER_S
from testbed.verdict import Result, Status, Verdict, conclude

SHORTEST_SHOWN_S = 0.001


def judge(plan: Plan, tables: Tables, trust: Sequence[str]) -> Verdict:
    """Judge every expectation of `plan`, and what every run has to pass: the ledger, and right answers.

    `trust` holds the reasons not to trust the run, if any.
    """
    results = [_judge_one(expectation, tables) for expectation in plan.expectations]
    checks = (ledger.judge(plan, tables), answers.judge(plan, tables), endings.judge(plan, tables))
    return conclude((*results, *(check for check in checks if check)), tuple(trust))


def trust(run: RunDir, tables: Tables, findings: Sequence[audit.Finding]) -> list[str]:
    """Every reason not to trust the run; empty when there is none.

    From its tables, its outcome, and what the audit of the link found; what the audit lacks of a run that
    was broken off is not listed.
    """
    events = tables["events"]
    noted = events.filter(pl.col("kind") == "trust")["detail"].to_list()
    problems = [str(detail) for detail in noted]
    kinds = set(events["kind"])
    if "start" not in kinds:
        problems.append("the run never started: the journal has no start")
    if "end" not in kinds:
        problems.append("the run did not end by itself: the journal has no end")
    problems += _outcome_problems(run)
    if run.trouble.is_file():
        problems += [str(problem) for problem in json.loads(run.trouble.read_bytes())]
    problems += [
        finding.sentence
        for finding in findings
        if not finding.ok and ("end" in kinds or finding.measured != audit.ABSENT)
    ]
    return list(dict.fromkeys(problems))


def _outcome_problems(run: RunDir) -> list[str]:
    if not run.outcome.is_file():
        return ["the run left no outcome.json: it was killed, or died"]
    try:
        outcome = json.loads(run.outcome.read_bytes())
        finished, problems = bool(outcome["finished"]), [str(problem) for problem in outcome["problems"]]
    except (ValueError, KeyError, TypeError) as error:
        return [f"outcome.json is not readable: {error!r}"]
    return problems if finished or problems else ["the run did not finish"]


def _judge_one(expectation: Expectation, tables: Tables) -> Result:
    metric = METRICS[expectation.metric]
    if expectation.kind == "bound":
        return _bound(expectation, metric, tables)
    if expectation.kind == "stability":
        return _stability(expectation, metric, tables)
    event_s = _event_time(expectation, tables)
    if event_s is None:
        return _unknown(expectation, f'the event "{expectation.event}" is not in the record')
    judged = _reaction if expectation.kind == "reaction" else _recovery
    return judged(expectation, metric, tables, event_s)


def _bound(expectation: Expectation, metric: Metric, tables: Tables) -> Result:
    from_s, to_s = _window(expectation)
    missing = _missing(expectation, metric, tables, from_s, to_s)
    if missing:
        return missing
    if expectation.tenant is not None:
        tables = {**tables, "requests": tables["requests"].filter(pl.col("tenant") == expectation.tenant)}
    without, requests = measure.unserved(metric, tables, from_s, to_s)
    if without and expectation.high is not None:
        return _result(
            expectation, "FAIL", None, None,
            f"{_metric(expectation)}: {without} of {requests} requests {_stretch(from_s, to_s)} never got"
            " there"
            f" (allowed {_range(expectation, metric.unit)})",
        )  # fmt: skip
    if metric.statistic == "violations":
        found = ledger.violations(tables)
        measured = None if found is None else float(len(found))
    else:
        measured = measure.value(metric, tables, from_s, to_s)
    if measured is None:
        return _unknown(expectation, f"{expectation.metric} was not measured {_stretch(from_s, to_s)}")
    margin = _margin(measured, expectation.low, expectation.high)
    return _result(
        expectation,
        "PASS" if margin >= 0 else "FAIL",
        measured,
        margin,
        f"{_metric(expectation)} was {quantity(measured, metric.unit)} {_stretch(from_s, to_s)}"
        f" (allowed {_range(expectation, metric.unit)})",
    )


def _reaction(expectation: Expectation, metric: Metric, tables: Tables, event_s: float) -> Result:
    level, allowed_s = expectation.level, _within_s(expectation)
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
        missing = _missing(expectation, metric, tables, event_s, event_s + allowed_s)
        if missing:
            return missing
    if took_s is not None:
        return _timed(expectation, took_s, f"{expectation.metric} {crossed} after {_seconds(took_s)}")
    if not after.times_s:
        return _unknown(expectation, f"{expectation.metric} was not measured after {number(event_s)} s")
    already = f": it was {expectation.crosses} before the event already" if stood_there else ""
    never = f"{expectation.metric} never {crossed} {_stretch(event_s, after.times_s[-1])}{already}"
    return _result(expectation, "FAIL", None, None, f"{never} (allowed {_seconds(allowed_s)})")


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


def _recovery(expectation: Expectation, metric: Metric, tables: Tables, event_s: float) -> Result:
    allowed_s = _within_s(expectation)
    _, to_s = _window(expectation)
    missing = _missing(expectation, metric, tables, event_s, to_s)
    if missing:
        return missing
    signal = measure.series(metric, tables)
    after = signal.within(event_s, to_s)
    if not after.times_s:
        return _unknown(expectation, f"{expectation.metric} was not measured {_stretch(event_s, to_s)}")
    held = signal.last_before(event_s)
    seen = after.values if held is None else (held, *after.values)
    if all(_margin(value, expectation.low, expectation.high) >= 0 for value in seen):
        allowed = _range(expectation, metric.unit)
        return _unknown(expectation, f"{expectation.metric} never left {allowed}, so it could not come back")
    settled = _settled_from(after, expectation)
    allowed = _range(expectation, metric.unit)
    if settled is None:
        last = quantity(after.values[-1], metric.unit)
        return _result(
            expectation,
            "FAIL",
            None,
            None,
            f"{expectation.metric} did not come back to {allowed}: it was {last} at {after.times_s[-1]:.1f} s"
            f" (allowed {_seconds(allowed_s)})",
        )
    took_s = settled - event_s
    return _timed(expectation, took_s, f"{expectation.metric} was back to {allowed} after {_seconds(took_s)}")


def _stability(expectation: Expectation, metric: Metric, tables: Tables) -> Result:
    from_s, to_s = _window(expectation)
    assert expectation.high is not None, "checked by the plan"
    missing = _missing(expectation, metric, tables, from_s, to_s)
    if missing:
        return missing
    signal = measure.series(metric, tables).within(from_s, to_s)
    if not signal.values:
        return _unknown(expectation, f"{expectation.metric} was not measured {_stretch(from_s, to_s)}")
    turns = turning_points(signal.values, expectation.level or 0.0)
    margin = expectation.high - turns
    return _result(
        expectation,
        "PASS" if margin >= 0 else "FAIL",
        float(turns),
        margin,
        f"{expectation.metric} changed direction {_times(turns)} {_stretch(from_s, to_s)}"
        f" (allowed {_times(expectation.high)}{_ignoring(expectation, metric)})",
    )


def turning_points(values: Sequence[float], smallest_move: float) -> int:
    """How often a series changes direction, where a move under `smallest_move` is none."""
    turns, direction = 0, 0
    low = high = values[0]
    for value in values:
        rose = value > low and value - low >= smallest_move
        fell = value < high and high - value >= smallest_move
        if direction <= 0 and rose:
            turns += direction < 0
            direction, low, high = 1, value, value
        elif direction >= 0 and fell:
            turns += direction > 0
            direction, low, high = -1, value, value
        low, high = min(low, value), max(high, value)
    return turns


def _settled_from(signal: Series, expectation: Expectation) -> float | None:
    """The time of the first sample from which on all lie in the range; None if the last one does not."""
    settled = None
    for time_s, value in zip(reversed(signal.times_s), reversed(signal.values), strict=True):
        if _margin(value, expectation.low, expectation.high) < 0:
            break
        settled = time_s
    return settled


def _timed(expectation: Expectation, took_s: float, what: str) -> Result:
    allowed_s = _within_s(expectation)
    return _result(
        expectation,
        "PASS" if took_s <= allowed_s else "FAIL",
        took_s,
        allowed_s - took_s,
        f"{what} (allowed {_seconds(allowed_s)})",
    )


def _missing(
    expectation: Expectation, metric: Metric, tables: Tables, from_s: float, to_s: float
) -> Result | None:
    """UNKNOWN when samples are missing in [from, to)."""
    hole = measure.hole(metric, tables, from_s, to_s)
    return _unknown(expectation, f"{expectation.metric} has no samples {_stretch(*hole)}") if hole else None


def _unknown(expectation: Expectation, why: str) -> Result:
    return _result(expectation, "UNKNOWN", None, None, why)


def _result(
    expectation: Expectation, status: Status, measured: float | None, margin: float | None, sentence: str
) -> Result:
    metric = METRICS[expectation.metric]
    return Result(
        name=expectation.name,
        kind=expectation.kind,
        metric=expectation.metric,
        status=status,
        measured=measured,
        unit={"bound": metric.unit, "stability": "changes"}.get(expectation.kind, "s"),
        bound=_allowed(expectation, metric),
        margin=margin,
        sentence=sentence,
        line=expectation.line,
    )


def _allowed(expectation: Expectation, metric: Metric) -> str:
    if expectation.kind == "bound":
        return f"{_range(expectation, metric.unit)} {_stretch(*_window(expectation))}"
    if expectation.kind == "stability":
        return f"at most {_times(expectation.high or 0)}{_ignoring(expectation, metric)}"
    after = f"within {_seconds(_within_s(expectation))} of {expectation.event}"
    if expectation.kind == "reaction":
        return f"{expectation.crosses} {quantity(expectation.level or 0, metric.unit)} {after}"
    return f"{_range(expectation, metric.unit)} {after}"


def _event_time(expectation: Expectation, tables: Tables) -> float | None:
    """When the event took place, which is what was recorded, not what was planned."""
    events = tables["events"].filter((pl.col("kind") == "event") & (pl.col("name") == expectation.event))
    times = events["t_s"].drop_nulls().to_list()
    return float(times[0]) if times else None


def _metric(expectation: Expectation) -> str:
    return f"{expectation.metric} of {expectation.tenant}" if expectation.tenant else expectation.metric


def _window(expectation: Expectation) -> tuple[float, float]:
    return expectation.from_ns / NS_PER_S, expectation.to_ns / NS_PER_S


def _within_s(expectation: Expectation) -> float:
    assert expectation.within_ns is not None, "checked by the plan"
    return expectation.within_ns / NS_PER_S


def _on_side(value: float | None, level: float, above: bool) -> bool:
    return value is not None and (value >= level if above else value <= level)


def _margin(value: float, low: float | None, high: float | None) -> float:
    """Distance to the nearest bound, negative outside; infinite without bounds."""
    return min(
        value - low if low is not None else float("inf"), high - value if high is not None else float("inf")
    )


def _range(expectation: Expectation, unit: str) -> str:
    low, high = expectation.low, expectation.high
    if low is not None and high is not None:
        if low == high:
            return f"exactly {quantity(low, unit)}"
        return f"{_shared_unit(low, high, unit)} to {quantity(high, unit)}"
    if low is not None:
        return f"at least {quantity(low, unit)}"
    return f"at most {quantity(high, unit)}" if high is not None else "anything"


def _ignoring(expectation: Expectation, metric: Metric) -> str:
    return f", moves under {quantity(expectation.level, metric.unit)} ignored" if expectation.level else ""


def _stretch(from_s: float, to_s: float) -> str:
    return f"from {number(from_s)} to {number(to_s)} s"


def _seconds(seconds: float) -> str:
    return quantity(seconds, "s") if seconds >= SHORTEST_SHOWN_S else "less than 1 ms"


def _times(count: float) -> str:
    return "once" if count == 1 else f"{number(count)} times"


def _shared_unit(low: float, high: float, unit: str) -> str:
    """`low` without its unit where `high` has the same: 18,000 to 21,000 tokens."""
    low_text, high_text = quantity(low, unit), quantity(high, unit)
    low_number, _, low_unit = low_text.partition(" ")
    return low_number if low_unit == high_text.partition(" ")[2] else low_text
