"""The report as one picture: the verdict, what was expected, the main numbers and the main charts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from testbed.errors import MachineError, Problem
from testbed.lettering import shown as letters
from testbed.plan import Plan
from testbed.report import charts, signals, svg
from testbed.report.document import asset
from testbed.report.markup import Markup, element, joined
from testbed.report.numbers import Number
from testbed.report.signals import Tables
from testbed.report.svg import Chart, TimeAxis
from testbed.report.tables import shown
from testbed.report.thinning import thinned
from testbed.verdict import Verdict

MAIN_CHARTS: Final = ("Link A → B", "Threshold", "Time to first token", "Prefill queue")
EDGE, LINE = 24, 20
MOST_RESULTS, LETTERS_A_LINE = 12, 104
STYLE: Final = """
text { font-family: 'DejaVu Sans', Arial, sans-serif; font-size: 12px; fill: var(--soft); }
.title { font-size: 19px; font-weight: bold; fill: var(--ink); }
.word { font-size: 24px; font-weight: bold; }
.ink { fill: var(--ink); font-size: 13px; } .bold { font-weight: bold; }
.value-tick, .note-label { text-anchor: end; } .time-tick { text-anchor: middle; }
.event-label { fill: var(--event); font-weight: bold; }
.grid { stroke: var(--grid); } .shaded { fill: var(--event); fill-opacity: .1; }
.line, .dots path, .squares path, .marks, .event { fill: none; } .line { stroke-width: 1.8; }
.dashed { stroke-dasharray: 6 4; } .faint { stroke-width: 1; opacity: .35; } .filled { opacity: .17; }
.dots path { stroke-width: 6; stroke-linecap: round; opacity: .75; }
.squares path { stroke-width: 4.5; stroke-linecap: square; opacity: .7; } .marks { stroke-width: 2.5; }
.event { stroke: var(--event); stroke-dasharray: 3 3; } .note { stroke: var(--soft); stroke-dasharray: 2 4; }
.cursor { display: none; }
.PASS { fill: var(--pass); } .FAIL { fill: var(--fail); } .UNKNOWN { fill: var(--unknown); }
"""


def png(drawing: str) -> bytes:
    """The drawing as PNG; MachineError without the package that does it."""
    if find_spec("resvg_py") is None:
        next_step = "pip install resvg-py, or make setup"
        raise MachineError(
            Problem("--format png", "the package resvg-py is not installed", next_step=next_step)
        )
    resvg: Any = import_module("resvg_py")
    return bytes(resvg.svg_to_bytes(svg_string=drawing))


def draw(plan: Plan, tables: Tables, verdict: Verdict, numbers: Sequence[Number]) -> str:
    """SVG that needs nothing outside itself but a font."""
    page = _Page()
    page.text(f"scenario {plan.name}", "soft")
    for line in textwrap.wrap(plan.question, LETTERS_A_LINE):
        page.text(line, "title", 26)
    page.text(verdict.status, f"word {verdict.status}", 32)
    for said in (verdict.note, *(f"not trusted: {reason}" for reason in verdict.trust[:MOST_RESULTS])):
        for line in textwrap.wrap(said, LETTERS_A_LINE + 20):
            page.text(line, "ink")
    page.skip(8)
    for one in verdict.results[:MOST_RESULTS]:
        measured = f"{one.name}: {shown(one.measured, one.unit)}; allowed: {one.bound}"
        for number, line in enumerate(textwrap.wrap(_cut(measured), LETTERS_A_LINE + 20)):
            page.text(line, "ink", before=("" if number else one.status, f"bold {one.status}"))
    if len(verdict.results) > MOST_RESULTS:
        page.text(f"and {len(verdict.results) - MOST_RESULTS} more", "soft")
    page.skip(8)
    facts = "; ".join(f"{one.name} {one.value}{one.rest}" for one in numbers)
    for line in textwrap.wrap(facts, LETTERS_A_LINE + 30, break_on_hyphens=False):
        page.text(line, "soft")
    axis = signals.time_axis(plan, tables)
    every = [chart for figure in charts.figures(plan, tables, axis) for chart in figure.charts]
    for index, chart in enumerate(one for one in every if one.title in MAIN_CHARTS):
        page.chart(thinned(chart, axis), axis, f"chart-{index}")
    return _coloured(page.whole())


class _Page:
    """Texts and charts one below the other."""

    def __init__(self) -> None:
        self._y = EDGE
        self._parts: list[Markup] = []

    def skip(self, height: int) -> None:
        self._y += height

    def text(self, words: str, kind: str, height: int = LINE, before: tuple[str, str] | None = None) -> None:
        """A line; `before` stands in a column of its own, with its own look."""
        self._y += height
        left = EDGE
        if before is not None:
            self._parts.append(element("text", before[0], x=left, y=self._y, class_=before[1]))
            left += 90
        self._parts.append(element("text", words, x=left, y=self._y, class_=kind))

    def chart(self, chart: Chart, axis: TimeAxis, identity: str) -> None:
        self._y += 34
        keys = [element("tspan", f"{chart.title}, {chart.unit}", class_="ink bold")]
        for curve in chart.curves:
            square = "  \N{BLACK SQUARE} "
            opacity = ".35" if curve.faint else "1"
            keys.append(element("tspan", square, fill=f"var(--{curve.colour})", fill_opacity=opacity))
            keys.append(element("tspan", curve.label))
        self._parts.append(element("text", keys, x=EDGE, y=self._y, style="white-space:pre"))
        self._y += 8
        drawn = svg.draw(chart, axis, identity, names=True, times=True, alt=chart.title)
        place = f'<svg x="{EDGE}" y="{self._y}" width="{svg.WIDTH}" height="{chart.height}" '
        self._parts.append(Markup(drawn.replace("<svg ", place, 1)))
        self._y += chart.height

    def whole(self) -> Markup:
        width, height = svg.WIDTH + 2 * EDGE, self._y + EDGE
        return element(
            "svg",
            element("style", Markup(STYLE)),
            element("rect", width=width, height=height, fill="var(--card)"),
            joined(self._parts),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {height}",
            width=width,
            height=height,
        )  # fmt: skip


def _cut(text: str) -> str:
    """To two lines at most."""
    return textwrap.shorten(text, 2 * LETTERS_A_LINE, placeholder=" …")


def _coloured(drawing: str) -> str:
    """With the colours of the page in the light."""
    colours = dict(re.findall(r"--(\w+): (#\w+)", asset("report.css").partition("}")[0]))

    def coloured(part: re.Match[str]) -> str:
        return re.sub(r"var\(--(\w+)\)", lambda name: colours.get(name[1], name[0]), part[0])

    # In tags and in the style sheet only: a text may hold what looks like a colour, and is none.
    return re.sub(r"<style>[^<]*|<[^>]*>", coloured, letters(drawing))
