"""A chart over time as static SVG; `report.js` adds cursor and zoom on top of it.

All charts of a page have the same time axis and the same margins, so that they line up. Shapes live in a
group that zooming stretches along x only; strokes do not scale with it, and a dot is a line of length
zero with a round or square cap, so it keeps its shape too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from testbed.readable import number
from testbed.report.markup import Markup, element, joined

WIDTH, LEFT, RIGHT, TOP = 1100, 62, 14, 10
BOTTOM, BOTTOM_WITH_TIMES = 8, 24
TICK_EVERY = 50
"""Height per line of the value axis, about."""
PLOT_WIDTH = WIDTH - LEFT - RIGHT
MOST_TITLES, DOT_CELL = 1_500, 2
"""More dots than that are drawn without titles, and on a grid of so many pixels."""
MOST_LABEL_ROWS, LABEL_ROW_HEIGHT, LETTER_WIDTH = 2, 14, 7.0

Shape = Literal["line", "step", "area", "band", "dots", "squares", "marks"]


@dataclass(frozen=True)
class Curve:
    """One series of a chart; a None breaks the line."""

    label: str
    colour: str
    """Name of a CSS variable of report.css, without its dashes."""
    shape: Shape
    times_s: Sequence[float]
    values: Sequence[float | None]
    titles: Sequence[str] = ()
    """For dots: what to show on hover; not shown where there are many."""
    lows: Sequence[float | None] = ()
    """For a band: its lower edge, where `values` are the upper one."""
    dashed: bool = False
    faint: bool = False


@dataclass(frozen=True)
class TimeAxis:
    """What all charts share: the span, the marked moments and the shaded intervals.

    With `ticks`, each a place and its label, it is an axis of something else than time.
    """

    from_s: float
    to_s: float
    events: tuple[tuple[float, str], ...] = ()
    shaded: tuple[tuple[float, float], ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()

    def x(self, t_s: float) -> float:
        return LEFT + (t_s - self.from_s) / (self.to_s - self.from_s) * PLOT_WIDTH


@dataclass(frozen=True)
class Chart:
    """One panel."""

    title: str
    unit: str
    height: int
    curves: tuple[Curve, ...]
    log_floor: float | None = None
    """Logarithmic from this value on; lower values are drawn at the floor."""
    top: float | None = None
    """Upper end of the axis; None: what the data needs."""
    from_zero: bool = True
    """Linear axes of lines may start elsewhere, where the change matters more than the size."""
    notes: tuple[tuple[float, str], ...] = ()
    """Horizontal lines with a label, such as a limit."""


@dataclass(frozen=True)
class _Frame:
    """Upper and lower end of the plot in y."""

    top_y: float
    base_y: float


class _ValueAxis:
    """From a value to y: linear, or logarithmic from a floor."""

    def __init__(self, chart: Chart, frame: _Frame) -> None:
        self._frame = frame
        values = [
            value for curve in chart.curves for value in (*curve.values, *curve.lows) if value is not None
        ]
        values += [level for level, _ in chart.notes]
        self._log = chart.log_floor is not None
        if chart.log_floor is not None:
            self._low = chart.log_floor
            self._high = max(max(values, default=0.0) * 1.3, self._low * 10)
            first, last = math.ceil(math.log10(self._low) - 1e-9), math.floor(math.log10(self._high))
            self.ticks = [10.0**power for power in range(first, last + 1)]
            return
        highest = chart.top or max(values, default=0.0) or 1.0
        lowest = 0.0 if chart.from_zero else min(values, default=0.0)
        step = nice_step((highest - lowest) or highest, max(3, chart.height // TICK_EVERY))
        self._low = 0.0 if chart.from_zero else max(0.0, (math.ceil(lowest / step) - 1) * step)
        self._high = chart.top or max(highest + 0.04 * (highest - self._low), self._low + step)
        count = int((self._high - self._low) / step + 1e-9)
        self.ticks = [self._low + step * index for index in range(count + 1)]

    def y(self, value: float) -> float:
        if self._log:
            share = math.log(max(value, self._low) / self._low) / math.log(self._high / self._low)
        else:
            share = (value - self._low) / (self._high - self._low)
        share = min(max(share, 0.0), 1.0)
        return self._frame.base_y - share * (self._frame.base_y - self._frame.top_y)

    @property
    def base_y(self) -> float:
        return self._frame.base_y


def nice_step(span: float, wanted: int) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides `span` in about `wanted` parts."""
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999999)


def draw(chart: Chart, axis: TimeAxis, identity: str, *, names: bool, times: bool, alt: str) -> Markup:
    """The panel as SVG. `names`: of the events, above it; `times`: of the time axis, below it."""
    labels, rows = _event_labels(axis) if names else ([], 0)
    frame = _Frame(
        top_y=TOP + rows * LABEL_ROW_HEIGHT, base_y=chart.height - (BOTTOM_WITH_TIMES if times else BOTTOM)
    )
    values = _ValueAxis(chart, frame)
    clip = f"clip-{identity}"
    stretched = element(
        "g",
        [_shade(axis, frame, span) for span in axis.shaded],
        [_curve(curve, axis, values) for curve in chart.curves],
        [_event_line(axis, frame, t_s) for t_s, _ in axis.events],
        class_="stretch",
    )
    return element(
        "svg",
        element("clipPath", element("rect", x=LEFT, y=0, width=PLOT_WIDTH, height=chart.height), id=clip),
        # Below the shapes, so that hovering over a dot reaches the dot, and dragging starts anywhere.
        element("rect", x=LEFT, y=0, width=PLOT_WIDTH, height=frame.base_y, fill="none", class_="plot"),
        [_value_tick(values, tick) for tick in values.ticks],
        element("g", stretched, clip_path=f"url(#{clip})"),
        [_note(values, level, text) for level, text in chart.notes],
        element("g", labels),
        element(
            "g", _time_ticks(axis, chart.height) if times else None, class_="time-ticks" if times else None
        ),
        element("line", class_="cursor", x1=0, x2=0, y1=TOP, y2=frame.base_y),
        viewBox=f"0 0 {WIDTH} {chart.height}",
        class_="chart",
        id=identity,
        role="img",
        aria_label=alt,
        data_base=frame.base_y,
    )


def timeline(axis: TimeAxis, identity: str, height: int, alt: str) -> Markup:
    """The axis, its events and shades without any curve: for what a script draws into it."""
    frame = _Frame(top_y=TOP, base_y=height - BOTTOM_WITH_TIMES)
    stretched = element(
        "g",
        [_shade(axis, frame, span) for span in axis.shaded],
        [_event_line(axis, frame, t_s) for t_s, _ in axis.events],
        class_="stretch",
    )
    return element(
        "svg",
        element(
            "clipPath", element("rect", x=LEFT, y=0, width=PLOT_WIDTH, height=height), id=f"clip-{identity}"
        ),
        element("rect", x=LEFT, y=0, width=PLOT_WIDTH, height=frame.base_y, fill="none", class_="plot"),
        element("g", stretched, clip_path=f"url(#clip-{identity})"),
        element("g", class_="row-names"),
        element("g", _time_ticks(axis, height), class_="time-ticks"),
        element("line", class_="cursor", x1=0, x2=0, y1=TOP, y2=frame.base_y),
        viewBox=f"0 0 {WIDTH} {height}",
        class_="chart",
        id=identity,
        role="img",
        aria_label=alt,
        data_base=frame.base_y,
    )


def _curve(curve: Curve, axis: TimeAxis, values: _ValueAxis) -> Markup:
    style = f"stroke:var(--{curve.colour})"
    points = [
        None if value is None else (axis.x(t_s), values.y(value))
        for t_s, value in zip(curve.times_s, curve.values, strict=True)
    ]
    if curve.shape in ("dots", "squares"):
        return element("g", _dots(points, curve.titles), class_=curve.shape, style=style)
    if curve.shape == "marks":
        places = sorted({round(point[0], 1) for point in points if point})
        marks = "".join(f"M{x:.1f} {values.base_y}v-14" for x in places)
        return element("path", d=marks, class_="marks", style=style)
    if curve.shape == "band":
        return _band(curve, axis, values)
    kind = " dashed" if curve.dashed else " faint" if curve.faint else ""
    runs = _runs(points, stepped=curve.shape == "step")
    line = element("path", d="".join("M" + _path(run) for run in runs), class_=f"line{kind}", style=style)
    if curve.shape != "area":
        return line
    filled = "".join(
        f"M{run[0][0]:.1f} {values.base_y:.1f}L{_path(run)}L{run[-1][0]:.1f} {values.base_y:.1f}Z"
        for run in runs
    )
    return joined(element("path", d=filled, class_="filled", style=f"fill:var(--{curve.colour})"), line)


def _dots(points: Sequence[tuple[float, float] | None], titles: Sequence[str]) -> list[Markup]:
    """A path with a title for each dot, or one path for all of many, with one dot where several meet."""
    if titles and len(points) <= MOST_TITLES:
        return [
            element("path", element("title", title), d=f"M{point[0]:.1f} {point[1]:.1f}h.01")
            for point, title in zip(points, titles, strict=True)
            if point
        ]
    cells = {(round(point[0] / DOT_CELL), round(point[1] / DOT_CELL)) for point in points if point}
    places = [f"M{x * DOT_CELL} {y * DOT_CELL}h.01" for x, y in sorted(cells)]
    return [element("path", d="".join(places))] if places else []


def _band(curve: Curve, axis: TimeAxis, values: _ValueAxis) -> Markup:
    """What lies between both edges, filled."""
    edges = [
        None if high is None or low is None else (axis.x(t_s), values.y(low), values.y(high))
        for t_s, low, high in zip(curve.times_s, curve.lows, curve.values, strict=True)
    ]
    lower = _runs([edge and (edge[0], edge[1]) for edge in edges], stepped=False)
    upper = _runs([edge and (edge[0], edge[2]) for edge in edges], stepped=False)
    filled = "".join(f"M{_path(high)}L{_path(low[::-1])}Z" for low, high in zip(lower, upper, strict=True))
    return element("path", d=filled, class_="filled", style=f"fill:var(--{curve.colour})")


def _runs(points: Sequence[tuple[float, float] | None], *, stepped: bool) -> list[list[tuple[float, float]]]:
    """Stretches without a break; a step holds its value until the next one."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    runs = [run for run in runs if run]
    if not stepped:
        return runs
    return [[run[0], *(corner for a, b in pairwise(run) for corner in ((b[0], a[1]), b))] for run in runs]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _shade(axis: TimeAxis, frame: _Frame, span: tuple[float, float]) -> Markup:
    start, end = axis.x(span[0]), axis.x(span[1])
    return element("rect", x=start, y=0, width=max(end - start, 0.5), height=frame.base_y, class_="shaded")


def _event_line(axis: TimeAxis, frame: _Frame, t_s: float) -> Markup:
    x = axis.x(t_s)
    return element("line", x1=x, x2=x, y1=0, y2=frame.base_y, class_="event")


def _event_labels(axis: TimeAxis) -> tuple[list[Markup], int]:
    """Names beside the lines, and the rows they take; a name for which no row has room is left out."""
    free_x: list[float] = []
    labels = []
    for t_s, name in axis.events:
        x = axis.x(t_s) + 4
        row = next((index for index, free in enumerate(free_x) if free <= x), len(free_x))
        if row == MOST_LABEL_ROWS:
            continue
        free_x[row:] = [x + len(name) * LETTER_WIDTH + 8, *free_x[row + 1 :]]
        # At the right edge the name stands on the other side of its line.
        beyond = free_x[row] > WIDTH
        labels.append(
            element(
                "text",
                name,
                x=x - 8 if beyond else x,
                y=11 + row * LABEL_ROW_HEIGHT,
                text_anchor="end" if beyond else None,
                class_="event-label",
                data_t=t_s,
                data_offset=-4 if beyond else 4,
            )
        )
    return labels, len(free_x)


def _note(values: _ValueAxis, level: float, text: str) -> Markup:
    y = values.y(level)
    return joined(
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="note"),
        element("text", text, x=WIDTH - RIGHT - 4, y=y - 4, class_="note-label"),
    )


def _value_tick(values: _ValueAxis, tick: float) -> Markup:
    y = values.y(tick)
    return joined(
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
        element("text", number(tick), x=LEFT - 8, y=y + 4, class_="value-tick"),
    )


def _time_ticks(axis: TimeAxis, height: int) -> list[Markup]:
    if axis.ticks:
        return [
            element("text", label, x=axis.x(place), y=height - 6, class_="time-tick")
            for place, label in axis.ticks
        ]
    step = nice_step(axis.to_s - axis.from_s, 12)
    first = math.ceil(axis.from_s / step - 1e-9)
    ticks = [index * step for index in range(first, int(axis.to_s / step + 1e-9) + 1)]
    return [
        element("text", number(tick, 6), x=axis.x(tick), y=height - 6, class_="time-tick") for tick in ticks
    ]
