"""Results as pictures: heat maps for two parameters, a curve for one, one of these for each value of others.

A sample from ranges has no rows and columns: it is dots over each parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Final

from testbed.readable import number, quantity
from testbed.report.document import key, panel
from testbed.report.markup import Markup, element, joined
from testbed.report.svg import Chart, Curve, Shape, TimeAxis, draw, nice_step
from testbed.sweep.points import Axis, as_text
from testbed.sweep.results import Measure, Result
from testbed.verdict import Status

MOST_FACETS: Final = 12
MOST_LABELS: Final = 14
DARKEST_PERCENT: Final = 42
"""Of the colour in a cell, so that its text stays readable."""
HEIGHT: Final = 190
MARKS: Final[dict[Status, str]] = {"PASS": "✓ PASS", "FAIL": "✗ FAIL", "UNKNOWN": "? UNKNOWN"}
COLOURS: Final[dict[Status, str]] = {"PASS": "green", "FAIL": "red", "UNKNOWN": "orange"}


@dataclass(frozen=True)
class Picture:
    """What is drawn: one measure of these results."""

    axes: tuple[Axis, ...]
    results: Sequence[Result]
    measure: Measure

    def value(self, one: Result) -> float | None:
        return one.measured.get(self.measure.name)

    @property
    def unit(self) -> str:
        name = self.measure.name
        return next((one.units[name] for one in self.results if name in one.units), "")

    @property
    def extent(self) -> tuple[float, float]:
        """Least and largest value of all."""
        values = [value for one in self.results if (value := self.value(one)) is not None]
        return (min(values), max(values)) if values else (0.0, 0.0)


def picture(wanted: Picture, identity: str) -> Markup:
    """The measure over whatever varies."""
    varying = [index for index, axis in enumerate(wanted.axes) if axis.varies]
    if any(not wanted.axes[index].values for index in varying):
        return joined(*(_dots(wanted, index, f"{identity}-{index}") for index in varying))
    if not varying:
        return element("p", shown(_middle(wanted, wanted.results), wanted.unit))
    # The two with most values span the map: the largest across, the other down.
    by_size = sorted(varying, key=lambda index: -len(wanted.axes[index].values))
    spanned, others = by_size[:2], sorted(by_size[2:])
    facets = list(product(*(wanted.axes[index].values for index in others)))
    drawn = []
    for number_, facet in enumerate(facets[:MOST_FACETS]):
        chosen = [
            one
            for one in wanted.results
            if all(one.point[i] == v for i, v in zip(others, facet, strict=True))
        ]
        part = Picture(wanted.axes, chosen, wanted.measure)
        title = ", ".join(f"{wanted.axes[i].path} {as_text(v)}" for i, v in zip(others, facet, strict=True))
        body = (
            _heat(part, spanned[1], spanned[0], wanted.extent)
            if len(spanned) > 1
            else _curve(part, spanned[0], f"{identity}-{number_}")
        )
        drawn.append(element("div", element("h4", title) if title else None, body))
    left = len(facets) - len(drawn)
    return joined(
        element("div", drawn, class_="facets" if len(spanned) > 1 else None),
        element("p", f"{left} more are in results.parquet", class_="soft") if left else None,
    )


def shown(value: float | None, unit: str) -> str:
    """A value for people; a dash for none."""
    return "\N{EN DASH}" if value is None else quantity(value, unit)


def worst(results: Sequence[Result]) -> Status:
    """UNKNOWN if one of them is, else FAIL if one is."""
    statuses = {one.row.status for one in results}
    order: tuple[Status, ...] = ("UNKNOWN", "FAIL", "PASS")
    return next(status for status in order if status in statuses)


def _middle(wanted: Picture, results: Sequence[Result]) -> float | None:
    values = [value for one in results if (value := wanted.value(one)) is not None]
    return median(values) if values else None


def _heat(wanted: Picture, down: int, across: int, extent: tuple[float, float]) -> Markup:
    rows, columns = wanted.axes[down], wanted.axes[across]
    head = [element("th", f"{rows.path} ↓   {columns.path} →")]
    head += [element("th", as_text(value), scope="col") for value in columns.values]
    body = []
    for row in rows.values:
        cells = [
            _cell(
                wanted,
                [one for one in wanted.results if (one.point[down], one.point[across]) == (row, column)],
                extent,
            )
            for column in columns.values
        ]
        body.append(element("tr", element("th", as_text(row), scope="row"), cells))
    table = element("table", element("thead", element("tr", head)), element("tbody", body), class_="heat")
    return element("div", table, class_="scroll")


def _cell(wanted: Picture, results: Sequence[Result], extent: tuple[float, float]) -> Markup:
    if not results:
        return element("td", "\N{EN DASH}", class_="empty", title="not run")
    value, status = _middle(wanted, results), worst(results)
    low, high = extent
    share = DARKEST_PERCENT * (value - low) / (high - low) if value is not None and high > low else 0.0
    agreeing = sum(one.row.status == status for one in results)
    mark = MARKS[status] + (f" {agreeing}/{len(results)}" if len(results) > 1 else "")
    all_of_them = ", ".join(f"seed {one.seed}: {shown(wanted.value(one), wanted.unit)}" for one in results)
    return element(
        "td",
        shown(value, wanted.unit),
        element("span", mark, class_=f"mark {status}"),
        class_=f"{status}-cell",
        style=f"--share:{share:.0f}%",
        title=all_of_them,
    )


def _curve(wanted: Picture, index: int, identity: str) -> Markup:
    """Median, least and largest over the seeds at each value, equally far apart; a dot for each run."""
    axis = wanted.axes[index]
    places = range(len(axis.values))
    by_value = [[one for one in wanted.results if one.point[index] == value] for value in axis.values]
    values = [[value for one in group if (value := wanted.value(one)) is not None] for group in by_value]
    several = any(len(group) > 1 for group in values)

    def line(label: str, pick: object, *, faint: bool) -> Curve:
        assert callable(pick)
        picked = [pick(group) if group else None for group in values]
        return Curve(label, "blue", "line", [float(place) for place in places], picked, faint=faint)

    curves = [line("median" if several else "measured", median, faint=False)]
    if several:
        curves += [line("least", min, faint=True), line("largest", max, faint=True)]
    curves += _by_status(wanted, [(float(place), one) for place in places for one in by_value[place]])
    every = max(1, math.ceil(len(axis.values) / MOST_LABELS))
    ticks = tuple((float(place), as_text(axis.values[place])) for place in places if place % every == 0)
    return _chart(wanted, axis, curves, TimeAxis(-0.5, len(axis.values) - 0.5, ticks=ticks), identity)


def _dots(wanted: Picture, index: int, identity: str) -> Markup:
    """A dot for each run, over a parameter whose values come from a range."""
    axis = wanted.axes[index]
    if axis.kind is None:
        return _curve(wanted, index, identity)
    kind = axis.kind
    bend = math.log10 if axis.log else float
    numbers = [kind.parse(value) for value in axis.values] or [axis.low, axis.high]
    low, high = bend(min(numbers)), bend(max(numbers))
    rim = 0.04 * (high - low)
    step = nice_step(high - low, 8)
    first = math.ceil(low / step - 1e-9)
    steps = [count * step for count in range(first, int(high / step + 1e-9) + 1)]
    ticks = tuple((place, as_text(kind.write(10**place if axis.log else place))) for place in steps)
    placed = [(bend(kind.parse(one.point[index])), one) for one in wanted.results]
    curves = _by_status(wanted, placed)
    return _chart(wanted, axis, curves, TimeAxis(low - rim, high + rim, ticks=ticks), identity)


def _by_status(wanted: Picture, placed: Sequence[tuple[float, Result]]) -> list[Curve]:
    """Dots in the colours of the verdicts; squares where a run failed, so that colour is not all."""
    curves = []
    for status, colour in COLOURS.items():
        its = [
            (place, one)
            for place, one in placed
            if one.row.status == status and wanted.value(one) is not None
        ]
        if its:
            titles = [f"seed {one.seed}: {shown(wanted.value(one), wanted.unit)} {status}" for _, one in its]
            values = [wanted.value(one) for _, one in its]
            shape: Shape = "dots" if status == "PASS" else "squares"
            curves.append(Curve(status, colour, shape, [place for place, _ in its], values, titles))
    return curves


def _chart(wanted: Picture, axis: Axis, curves: Sequence[Curve], span: TimeAxis, identity: str) -> Markup:
    title = f"{wanted.measure.name} over {axis.path}"
    chart = Chart(title, wanted.unit or "number", HEIGHT, tuple(curves))
    parts = [
        f"{curve.label} from {number(min(values))} to {number(max(values))}"
        for curve in curves
        if (values := [value for value in curve.values if value is not None])
    ]
    alt = f"{title}: {'; '.join(parts) or 'nothing was measured'}"
    return panel(
        chart,
        [key(curve, None) for curve in curves],
        draw(chart, span, identity, names=False, times=True, alt=alt),
    )
