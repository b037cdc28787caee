"""The page as a whole: the answer first, then its reasons, then what it rests on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed import tables as record
from testbed.audit import Finding
from testbed.plan import Expectation, Plan
from testbed.readable import number
from testbed.report import (
    answers,
    captures,
    charts,
    computing,
    failures,
    proof,
    provenance,
    reasons,
    signals,
    svg,
    tables,
    waterfall,
)
from testbed.report.document import asset, badge, document, key, panel
from testbed.report.markup import Markup, element, joined
from testbed.report.numbers import Number, main_numbers
from testbed.report.signals import Tables
from testbed.report.svg import Chart, Curve, TimeAxis
from testbed.report.thinning import thinned
from testbed.rundir import RunDir
from testbed.verdict import Result, Verdict

ZOOM_MARGIN_S = 5.0
CURSOR_DIGITS = 4
HINT = "; click, or arrows and Enter: the requests at that moment"


def write(
    run: RunDir,
    plan: Plan,
    record_tables: Tables,
    verdict: Verdict,
    manifest: Mapping[str, object],
    *,
    findings: Sequence[Finding],
) -> Path:
    """Write `report.html` of `run` and return its path.

    Self-contained: no request leaves the page. Any of the tables may be empty. Keys of `manifest` that
    are known (`virtual_s`, `wall_s`, `command`) are shown in their place, all others in a list. `findings`:
    what the audit of the link found.
    """
    axis = signals.time_axis(plan, record_tables)
    digest = record.digest_tables(record_tables)
    text = _page(run, plan, record_tables, verdict, manifest, axis=axis, digest=digest, findings=findings)
    run.report.write_text(text, encoding="utf-8")
    return run.report


def _page(
    run: RunDir,
    plan: Plan,
    record_tables: Tables,
    verdict: Verdict,
    manifest: Mapping[str, object],
    *,
    axis: TimeAxis,
    digest: str,
    findings: Sequence[Finding],
) -> str:
    drawn, cursor_series = draw_figures(charts.figures(plan, record_tables, axis), axis)
    singles = waterfall.section(record_tables, axis)
    real = computing.in_real_time(plan, manifest)
    body = element(
        "main",
        _header(plan, verdict),
        proof.section(findings),
        _distrust(verdict),
        _numbers(main_numbers(plan, record_tables, manifest, digest)),
        section("What was expected", _expectations(plan, verdict)),
        answers.section(plan, record_tables),
        section("At a glance", tables.phases(record_tables, axis)),
        element("h2", "What happened"),
        zoom_tools(axis, HINT),
        element("div", drawn, singles, class_="figures"),
        _details(plan, record_tables),
        captures.section(run),
        computing.section(plan, manifest),
        section("How to reproduce", provenance.reproduce(plan, manifest, digest, real_time=real)),
        section("What is not modelled", provenance.not_modelled(plan, real_time=real)),
        element("footer", _footer(real_time=real)),
    )  # fmt: skip
    scripts = waterfall.script() if singles else None
    return charts_document(f"{verdict.status}: {plan.name}", body, axis, cursor_series, scripts)


def charts_document(
    title: str,
    body: Markup,
    axis: TimeAxis,
    cursor_series: Mapping[str, Mapping[str, Sequence[float | None]]],
    more: Markup | None = None,
) -> str:
    """A page around `body`, with the script that all its charts share, and `more` after it."""
    data = {"span": [axis.from_s, axis.to_s], "plot": {"left": svg.LEFT, "width": svg.PLOT_WIDTH}}
    scripts = joined(
        element("script", _json({**data, "series": cursor_series}), type="application/json", id="chart-data"),
        element("script", asset("report.js")),
        more,
    )
    return document(title, joined(body, scripts))


def _json(value: object) -> Markup:
    """JSON that cannot end the script element it stands in."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def _header(plan: Plan, verdict: Verdict) -> Markup:
    outcome = badge(verdict.status, verdict.note, verdict.status)
    scenario = element("div", f"scenario {plan.name}", class_="overline")
    question = element("h1", _unbroken(plan.question))
    return element("header", element("div", scenario, question), outcome, class_="top")


def _unbroken(text: str) -> str:
    """No line break between a number and its unit."""
    return re.sub(r"(?<=\d) (?=(ms|s|[kMGT]?bps|[KMGT]i?B|%)\b)", "\u00a0", text)


def _distrust(verdict: Verdict) -> Markup | None:
    if not verdict.trust:
        return None
    return element(
        "section",
        element("h2", "Why this run cannot be trusted"),
        element("ul", [element("li", reason) for reason in verdict.trust]),
        class_="distrust",
    )


def _numbers(numbers: Sequence[Number]) -> Markup:
    shown = [
        element(
            "div",
            element("dt", one.name),
            element("dd", one.value, element("small", one.rest) if one.rest else None),
        )
        for one in numbers
    ]
    return element("dl", shown, class_="numbers")


def _footer(*, real_time: bool) -> str:
    if real_time:
        return f"All times are seconds of real time since the workload began. {computing.REAL_FIGURES}"
    return "All times are virtual seconds since the workload began."


def section(heading: str, *children: Markup | None) -> Markup:
    return element("section", element("h2", heading), element("div", *children, class_="card"))


def _expectations(plan: Plan, verdict: Verdict) -> Markup:
    if not verdict.results:
        return element("p", "Nothing was expected: the scenario has no expectations.")
    by_name = {expectation.name: expectation for expectation in plan.expectations}
    rows = [
        [
            element("span", result.status, class_=f"chip {result.status}"),
            joined(result.name, element("div", result.sentence, class_="finding")),
            joined(tables.shown(result.measured, result.unit), _meter(result, by_name.get(result.name))),
            result.bound,
            tables.shown(result.margin, result.unit),
        ]
        for result in verdict.results
    ]
    return tables.grid(["", "expectation", "measured", "allowed", "margin"], rows, left=4)


def _meter(result: Result, expectation: Expectation | None) -> Markup | None:
    """Measured against the upper bound, as a bar with a mark."""
    if expectation is None or result.measured is None:
        return None
    within_ns = expectation.within_ns
    limit = expectation.high if within_ns is None else within_ns / 1e9
    if not limit or limit < 0 or result.measured < 0:
        return None
    whole = max(limit * 1.25, result.measured)
    return element(
        "div",
        element("i", style=f"width:{100 * result.measured / whole:.1f}%"),
        element("b", style=f"left:{100 * limit / whole:.1f}%"),
        class_=f"meter {result.status}",
        aria_hidden="true",
    )


def zoom_tools(axis: TimeAxis, hint: str = "") -> Markup:
    """Zoom by button, for keyboards and for those who do not drag; `hint`: what else can be done."""
    spans = [("all", axis.from_s, axis.to_s)]
    spans += [(name, from_s, to_s) for name, from_s, to_s in signals.phases(axis) if name != "whole run"]
    if axis.shaded:
        moments = (("onset", axis.shaded[0][0]), ("end", axis.shaded[-1][1]))
        for name, t_s in moments:
            window = (max(axis.from_s, t_s - ZOOM_MARGIN_S), min(axis.to_s, t_s + 2 * ZOOM_MARGIN_S))
            spans.append((f"{name} of trouble", *window))
    return element(
        "div",
        element("span", "Zoom:", class_="soft"),
        [
            element(
                "button", name, type="button", data_from=repr(from_s), data_to=repr(to_s),
                aria_pressed="true" if name == "all" else "false",
            )
            for name, from_s, to_s in spans
        ],
        element("span", f"or drag across a chart{hint}; Esc shows all", class_="soft"),
        element("span", class_="at", id="cursor-at"),
        element("span", class_="unseen", id="said", role="status"),
        class_="tools", role="toolbar", aria_label="zoom of all charts",
    )  # fmt: skip


def draw_figures(
    wanted: tuple[charts.Figure, ...], axis: TimeAxis
) -> tuple[list[Markup], dict[str, dict[str, list[float | None]]]]:
    """The figures, and the values that the cursor reads, by id of their output element."""
    drawn: list[Markup] = []
    cursor: dict[str, dict[str, list[float | None]]] = {}
    for figure_index, figure in enumerate(wanted):
        panels: list[Markup] = []
        for chart_index, whole in enumerate(figure.charts):
            chart = thinned(whole, axis)
            identity = f"chart-{figure_index}-{chart_index}"
            keys = []
            for index, curve in enumerate(chart.curves):
                output = f"{identity}-{index}"
                readable = curve.shape in ("line", "step", "area") and bool(curve.times_s)
                keys.append(key(curve, output if readable else None))
                if readable:
                    cursor[output] = _cursor_values(curve)
            last = chart_index == len(figure.charts) - 1
            drawing = svg.draw(chart, axis, identity, names=chart_index == 0, times=last, alt=_alt(whole))
            panels.append(panel(chart, keys, drawing))
        caption = element(
            "figcaption", element("strong", figure.heading), " ", element("span", figure.remark)
        )
        drawn.append(element("figure", caption, panels, class_="card"))
    return drawn, cursor


def _cursor_values(curve: Curve) -> dict[str, list[float | None]]:
    return {
        "t": [round(t_s, 3) for t_s in curve.times_s],
        "v": [None if value is None else float(f"{value:.{CURSOR_DIGITS}g}") for value in curve.values],
    }


def _alt(chart: Chart) -> str:
    """The chart in words, for those who cannot see it."""
    parts = []
    for curve in chart.curves:
        values = [value for value in curve.values if value is not None]
        if values and curve.shape != "marks":
            parts.append(f"{curve.label} from {number(min(values))} to {number(max(values))}")
    return f"{chart.title} over time in {chart.unit}: " + ("; ".join(parts) or "no data")


def _details(plan: Plan, record_tables: Tables) -> Markup:
    lost, failed = tables.endings(record_tables), failures.happened(record_tables)
    single = tables.troubled(record_tables)
    return joined(
        section(
            "Requests",
            tables.by_route(record_tables),
            joined(element("h3", "Requests that did not complete"), lost) if lost else None,
            joined(element("h3", "Failed or tried again, one by one"), single) if single else None,
            element("h3", "The slowest to their first token"),
            tables.slowest(record_tables),
        ),
        section("Failures", failed) if failed else None,
        section(
            "Decisions",
            element("h3", "Why requests went where they went"),
            reasons.routes(record_tables),
            element("h3", "Why the threshold moved, or did not"),
            reasons.control(record_tables),
            element("h3", "Moves of the threshold and of roles"),
            tables.threshold_changes(record_tables),
            _folded("The last requests routed", tables.last_routes(record_tables)),
        ),
        section(
            "Network",
            element("h3", "Transfers"),
            tables.transfers(record_tables),
            element("h3", "Ledger of KV"),
            failures.balance(record_tables),
            element("h3", "The link as asked and as read back"),
            provenance.link(plan, record_tables),
            _folded("TCP connections", tables.connections(record_tables)),
        ),
    )


def _folded(summary: str, content: Markup) -> Markup:
    return element("details", element("summary", summary), content)
