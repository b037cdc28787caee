"""Curves of both sides in one chart: a line each, or the median of many runs with a band around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from testbed.compare.sides import NAMES
from testbed.measure import Tables
from testbed.plan import Plan
from testbed.report import charts, signals
from testbed.report.charts import Figure
from testbed.report.svg import Chart, Curve, TimeAxis

COLOURS: Final = ("orange", "blue")
GRID_STEPS: Final = 600
BAND: Final = (10.0, 90.0)
SAME_MOMENT_S: Final = 1e-3

LINK: Final = "Link A → B"


@dataclass(frozen=True)
class Signal:
    """One curve of one chart of a run's own report, and what it is called here."""

    chart: str
    curve: int
    title: str
    height: int
    linear: bool = True
    beside: int | None = None
    """A curve of the same chart to stand beside those of both sides; once, where it is the same for both."""


PANELS: Final = (
    (
        "Scheduler",
        "requests that leave more tokens to compute than the threshold are prefilled in datacenter A",
        (
            Signal("Threshold", 0, "Threshold", 170),
            Signal("Offloaded share of requests", 0, "Offloaded share of requests, last 10 s", 130),
        ),
    ),
    (
        "Goodput and capacity",
        "what crossed the link, logarithmic, beside what it could carry; what the policies believed it could",
        (
            Signal(LINK, 1, "Link A → B, mean of 1 s", 240, linear=False, beside=2),
            Signal(LINK, 3, "Capacity as the policy believes, where it binds", 130),
        ),
    ),
    (
        "Backlog",
        "bytes waiting in the senders and in front of the link, and what TCP had to send again",
        (
            Signal("KV waiting in the senders", 0, "KV waiting in the senders", 150),
            Signal("Queue in the link's buffer", 0, "Queue in the link's buffer", 110),
            Signal("Sent again by TCP", 0, "KV sent again by TCP", 110),
        ),
    ),
    (
        "Time to first token",
        "by the moment at which a request was sent",
        (Signal("Time to first token", 2, "P90 of the last 15 s", 240),),
    ),
    (
        "Requests in each state",
        "waiting for a prefill instance of either datacenter, and held by decode",
        (
            Signal("Prefill queue", 0, "Waiting in datacenter A", 120),
            Signal("Prefill queue", 1, "Waiting in datacenter B", 120),
            Signal("In decode", 0, "In decode", 120),
        ),
    ),
)
"""Headings, remarks, and what stands below them."""


@dataclass(frozen=True)
class Drawn:
    """The curves of one run by chart and number, those charts, and its axis."""

    axis: TimeAxis
    charts: dict[str, Chart]


def draw(plan: Plan, tables: Tables) -> Drawn:
    """What the overlay needs of one run."""
    axis = signals.time_axis(plan, tables)
    wanted = {signal.chart for _, _, shown in PANELS for signal in shown}
    found = (chart for figure in charts.figures(plan, tables, axis) for chart in figure.charts)
    return Drawn(axis, {chart.title: chart for chart in found if chart.title in wanted})


def shared_axis(runs: Sequence[Drawn]) -> TimeAxis:
    """As long as the longest; with the events and the trouble that all of them had at the same moments."""
    first = runs[0].axis
    events = tuple(
        (t_s, name)
        for t_s, name in first.events
        if all(any(_same(t_s, name, one) for one in run.axis.events) for run in runs)
    )
    shaded = first.shaded if all(run.axis.shaded == first.shaded for run in runs) else ()
    return TimeAxis(first.from_s, max(run.axis.to_s for run in runs), events, shaded)


def figures(sides: tuple[Sequence[Drawn], Sequence[Drawn]], axis: TimeAxis) -> tuple[Figure, ...]:
    """The key signals, those of the baseline over those of the candidate."""
    figures = []
    for heading, remark, wanted in PANELS:
        drawn = [chart for signal in wanted if (chart := _panel(sides, signal, axis))]
        if drawn:
            figures.append(Figure(heading, remark, tuple(drawn)))
    return tuple(figures)


def _panel(sides: tuple[Sequence[Drawn], Sequence[Drawn]], signal: Signal, axis: TimeAxis) -> Chart | None:
    """None where no run has a value."""
    model = sides[0][0].charts[signal.chart]
    drawn: list[Curve] = []
    # The baseline is dashed and on top: where both are the same, both are seen.
    for side, name, colour in reversed(list(zip(sides, NAMES, COLOURS, strict=True))):
        curves = [run.charts[signal.chart].curves[signal.curve] for run in side]
        drawn += _side(curves, name, colour, axis)
    if all(value is None for curve in drawn for value in curve.values):
        return None
    if signal.beside is not None:
        drawn[:0] = _beside(*(side[0].charts[signal.chart].curves[signal.beside] for side in sides))
    floor = None if signal.linear else model.log_floor
    return replace(model, title=signal.title, curves=tuple(drawn), height=signal.height, log_floor=floor)


def _beside(baseline: Curve, candidate: Curve) -> list[Curve]:
    if (baseline.times_s, baseline.values) == (candidate.times_s, candidate.values):
        return [replace(candidate, colour="grey")]
    return [
        replace(curve, label=f"{curve.label}, {name}", colour="grey", dashed=name == NAMES[0])
        for curve, name in ((candidate, NAMES[1]), (baseline, NAMES[0]))
    ]


def _side(curves: Sequence[Curve], name: str, colour: str, axis: TimeAxis) -> list[Curve]:
    """One run's curve as a line; of several, the median and a band."""
    dashed = name == NAMES[0]
    shape = curves[0].shape if curves[0].shape == "step" else "line"
    if len(curves) == 1:
        return [replace(curves[0], label=name, colour=colour, shape=shape, dashed=dashed, faint=False)]
    times_s = np.linspace(axis.from_s, axis.to_s, GRID_STEPS + 1)
    known = np.array([_held(curve, times_s) for curve in curves])
    # A moment counts where at least half of the runs have a value.
    enough = np.isfinite(known).sum(axis=0) * 2 >= len(curves)
    edges = np.full((3, len(times_s)), np.nan)
    if enough.any():
        edges[:, enough] = np.nanpercentile(known[:, enough], [BAND[0], 50.0, BAND[1]], axis=0)
    low, median, high = ([None if np.isnan(value) else float(value) for value in edge] for edge in edges)
    at_s = times_s.tolist()
    band = f"{name}, P{BAND[0]:.0f} to P{BAND[1]:.0f}"
    return [
        Curve(band, colour, "band", at_s, high, lows=low),
        Curve(f"{name}, median", colour, shape, at_s, median, dashed=dashed),
    ]


def _held(curve: Curve, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """The last value before each moment; nothing before the first and after the last one."""
    if not curve.times_s:
        return np.full(len(times_s), np.nan)
    values = np.array([np.nan if value is None else value for value in curve.values], dtype=np.float64)
    last = np.searchsorted(np.asarray(curve.times_s), times_s, side="right") - 1
    held = np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
    step_s = times_s[1] - times_s[0]
    return np.where(times_s <= curve.times_s[-1] + step_s, held, np.nan)


def _same(t_s: float, name: str, other: tuple[float, str]) -> bool:
    return other[1] == name and abs(other[0] - t_s) <= SAME_MOMENT_S
