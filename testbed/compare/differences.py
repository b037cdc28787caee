"""Value beside value: what each side measured, how they differ, and whether one is worse. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import msgspec

from testbed import ledger, measure
from testbed.compare import bootstrap, worse
from testbed.compare.bootstrap import Interval, Resampled
from testbed.compare.tolerances import Tolerance, Tolerances
from testbed.compare.worse import Worse
from testbed.measure import Tables
from testbed.metrics import METRICS
from testbed.plan import Plan
from testbed.units import NS_PER_S
from testbed.verdict import Verdict

Judged = Literal["worse", "unclear", "within", "better", "shown", "not measured"]
Values = Sequence[float | None]


@dataclass(frozen=True)
class Compared:
    """Something that every run has a number for: a metric of the whole run, or of an expectation."""

    metric: str
    expectation: str
    """Its name; empty for a metric of the whole run."""
    unit: str
    worse: Worse | None

    @property
    def name(self) -> str:
        return self.expectation or self.metric


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. Means are those of the runs that have a value; None where none has."""

    name: str
    metric: str
    of_expectation: bool
    unit: str
    worse: Worse | None
    first: float | None
    second: float | None
    difference: float | None
    relative: float | None
    """As a share of the first side's mean; None where that is 0."""
    interval: Interval | None
    relative_interval: Interval | None
    runs: tuple[int, int]
    """How many of each side these means are of."""
    never: tuple[int, int]
    """In how many runs of each side it never happened, which no mean can say."""
    tolerance: str
    judged: Judged


def units(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """By name of expectation: the unit of what it measured."""
    return {result.name: result.unit for verdict in verdicts for result in verdict.results}


def compared(plans: Sequence[Plan], verdicts: Sequence[Verdict], tolerances: Tolerances) -> list[Compared]:
    """What every comparison shows, then what is named in `tolerances`, then the plans' expectations."""
    unit_of = units(verdicts)
    expectations = {one.name: one for plan in plans for one in plan.expectations if one.name in unit_of}
    named = (name for name in tolerances.named if name in METRICS)
    metrics = [
        Compared(name, "", METRICS[name].unit, worse.of_metric(name))
        for name in dict.fromkeys([*worse.COMPARED, *named])
    ]
    expected = [
        Compared(one.metric, one.name, unit_of[one.name], worse.of_expectation(one))
        for one in expectations.values()
    ]
    return metrics + expected


def value(one: Compared, plan: Plan, tables: Tables, verdict: Verdict) -> float | None:
    """What a run measured; None: nothing. Infinite: it never happened, though somebody looked."""
    if one.expectation:
        result = next((result for result in verdict.results if result.name == one.expectation), None)
        if result is None or (result.measured is None and result.status != "FAIL"):
            return None
        return math.inf if result.measured is None else result.measured
    metric = METRICS[one.metric]
    if metric.statistic == "violations":
        found = ledger.violations(tables)
        return None if found is None else float(len(found))
    to_s = plan.duration_ns / NS_PER_S
    return None if measure.hole(metric, tables, 0.0, to_s) else measure.value(metric, tables, 0.0, to_s)


@dataclass(frozen=True)
class _Matched:
    """The values that are compared, and how often each side has none because it never happened."""

    first: list[float]
    second: list[float]
    never: tuple[int, int]
    comparable: bool
    """Both sides measured something; else they are only to be shown."""


def row(one: Compared, first: Values, second: Values, tolerances: Tolerances, *, paired: bool) -> Row:
    """Both sides' values, one per run, judged. `paired`: the n-th ones of both sides belong together."""
    matched = _match(first, second, paired=paired)
    named = tolerances.of(one.expectation, one.metric)
    tolerance = named or (tolerances.everywhere if one.worse else None)
    left, right = matched.first, matched.second
    resampled = bootstrap.resampled(left, right, paired=paired) if matched.comparable else None
    difference = fmean(right) - fmean(left) if matched.comparable and left and right else None
    return Row(
        name=one.name,
        metric=one.metric,
        of_expectation=bool(one.expectation),
        unit=one.unit,
        worse=one.worse,
        first=fmean(left) if left else None,
        second=fmean(right) if right else None,
        difference=difference,
        relative=difference / abs(fmean(left)) if difference is not None and fmean(left) else None,
        interval=resampled.difference() if resampled else None,
        relative_interval=resampled.relative() if resampled else None,
        runs=(len(left), len(right)),
        never=matched.never,
        tolerance=tolerance.text if tolerance else "",
        judged=_judged(one.worse, matched, tolerance, resampled),
    )


def _match(first: Values, second: Values, *, paired: bool) -> _Matched:
    """Pairs of which both were measured, or each side's own; those that never happened are counted apart."""
    one, two = [a for a in first if a is not None], [b for b in second if b is not None]
    comparable = bool(one and two)
    both = [(a, b) for a, b in zip(first, second, strict=False) if a is not None and b is not None]
    if paired and (comparable := bool(both)):
        one, two = [a for a, _ in both], [b for _, b in both]
    never = (sum(map(math.isinf, one)), sum(map(math.isinf, two)))
    finite = [(a, b) for a, b in both if math.isfinite(a) and math.isfinite(b)]
    if paired and finite:
        return _Matched([a for a, _ in finite], [b for _, b in finite], never, comparable)
    return _Matched(list(filter(math.isfinite, one)), list(filter(math.isfinite, two)), never, comparable)


def _judged(
    way: Worse | None, matched: _Matched, tolerance: Tolerance | None, resampled: Resampled | None
) -> Judged:
    """Worse where the interval as a whole lies beyond the tolerance, unclear where a part of it does.

    Without an interval the difference stands for it. What never happened in more runs than before is worse
    than any tolerance.
    """
    if not matched.comparable or tolerance is None:
        return "shown" if matched.comparable else "not measured"
    if matched.never[1] > matched.never[0]:
        return "worse"
    held: Judged = "within"
    if matched.first and matched.second:
        held = _by_values(way, matched, tolerance, resampled)
    return "better" if held == "within" and matched.never[1] < matched.never[0] else held


def _by_values(
    way: Worse | None, matched: _Matched, tolerance: Tolerance, resampled: Resampled | None
) -> Judged:
    """Where no direction is worse than the other, both are."""
    found = [
        _beyond(sign, matched, tolerance, resampled)
        for sign in {"up": (1,), "down": (-1,), None: (1, -1)}[way]
    ]
    if any(beyond.low > 0 for beyond in found):
        return "worse"
    if any(beyond.high > 0 for beyond in found):
        return "unclear"
    if way is not None and _beyond(-1 if way == "up" else 1, matched, tolerance, resampled).low > 0:
        return "better"
    return "within"


def _beyond(sign: int, matched: _Matched, tolerance: Tolerance, resampled: Resampled | None) -> Interval:
    """How far the difference lies beyond the tolerance in this direction."""
    if resampled is not None:
        return resampled.beyond(sign, tolerance.absolute, tolerance.share)
    mean = fmean(matched.first)
    beyond = sign * (fmean(matched.second) - mean) - tolerance.absolute - tolerance.share * abs(mean)
    return Interval(beyond, beyond)


def unanswered(rows: Sequence[Row], tolerances: Tolerances) -> Iterator[str]:
    """Names that a tolerance was given for, and that one of the sides did not measure."""
    for name in tolerances.named:
        its = [one for one in rows if name in (one.name, one.metric)]
        if not its or all(one.judged == "not measured" for one in its):
            yield f"{name} was not measured on both sides"
