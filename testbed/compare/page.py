"""A comparison as a page: the answer, the values, then both sides in the same charts."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.compare import overlay, shown
from testbed.compare.comparison import Comparison, Judgement, Status
from testbed.compare.differences import Judged, Row
from testbed.compare.sides import NAMES, Run
from testbed.report import page
from testbed.report.document import badge
from testbed.report.markup import Child, Markup, element, joined
from testbed.report.tables import DASH, grid
from testbed.verdict import Result
from testbed.verdict import Status as RunStatus

BADGES: Final[dict[Status, RunStatus]] = {
    "IDENTICAL": "PASS", "HOLDS": "PASS", "WORSE": "FAIL", "UNKNOWN": "UNKNOWN",
}  # fmt: skip
CHIPS: Final[dict[Judged, RunStatus]] = {"worse": "FAIL", "unclear": "UNKNOWN", "better": "PASS"}


def text(comparison: Comparison, command: Sequence[str]) -> str:
    """The page, self-contained; `command` is what made it."""
    judgement, sides = comparison.judgement, comparison.sides
    axis = overlay.shared_axis([*comparison.drawn[0], *comparison.drawn[1]])
    drawn, cursor = page.draw_figures(overlay.figures(comparison.drawn, axis), axis)
    body = element(
        "main",
        _header(judgement, sides.first[0]),
        _distrust(judgement),
        _numbers(comparison),
        page.section("What differs", _plans(judgement), _parted(judgement)),
        page.section("Values", _values(judgement.rows), element("p", judgement.method, class_="soft")),
        page.section("What was expected", _expectations(sides.first, sides.second)),
        element("h2", "What happened"),
        page.zoom_tools(axis),
        drawn,
        page.section("How to reproduce", element("pre", shlex.join(command))),
        element("footer", "All times are seconds since the workload began."),
    )
    names = f"{sides.first[0].plan.name} and {sides.second[0].plan.name}"
    return page.charts_document(f"{judgement.status}: {names}", body, axis, cursor)


def write(comparison: Comparison, command: Sequence[str], path: Path) -> None:
    path.write_text(text(comparison, command), encoding="utf-8")


def _header(judgement: Judgement, first: Run) -> Markup:
    outcome = badge(judgement.status, judgement.note, BADGES[judgement.status])
    words = element(
        "div",
        element("div", "comparison with a baseline", class_="overline"),
        element("h1", first.plan.question),
        [
            element("div", _swatch(colour), f"{name}: ", element("code", path))
            for name, colour, path in zip(
                NAMES, overlay.COLOURS, (judgement.first, judgement.second), strict=True
            )
        ],
    )
    return element("header", words, outcome, class_="top")


def _swatch(colour: str) -> Markup:
    return element("span", class_="swatch", style=f"background:var(--{colour});margin-left:0")


def _distrust(judgement: Judgement) -> Markup | None:
    if not judgement.unknown:
        return None
    reasons = element("ul", [element("li", reason) for reason in judgement.unknown])
    return element("section", element("h2", "Why not to rely on it"), reasons, class_="distrust")


def _numbers(comparison: Comparison) -> Markup:
    judgement = comparison.judgement
    pairs = []
    for name, side in zip(NAMES, (comparison.sides.first, comparison.sides.second), strict=True):
        counts = Counter(run.verdict.status for run in side)
        verdicts = ", ".join(f"{many} {status}" for status, many in counts.items())
        policies = ", ".join(dict.fromkeys(run.plan.policy.name or "none" for run in side))
        pairs += [
            (f"{name}, runs", verdicts if len(side) > 1 else side[0].verdict.status),
            (f"{name}, policy", policies),
        ]
    seeds = sorted({*judgement.seeds[0], *judgement.seeds[1]})
    listed = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    pairs.append(("seed" if len(seeds) == 1 else "seeds, paired" if judgement.paired else "seeds", listed))
    return element(
        "dl",
        [element("div", element("dt", name), element("dd", value)) for name, value in pairs],
        class_="numbers",
    )


def _plans(judgement: Judgement) -> Markup:
    rows: list[list[Child]] = [
        [
            joined(
                element("code", one.path),
                element("span", f" and {one.more} more", class_="soft") if one.more else None,
            ),
            one.first,
            one.second,
        ]
        for one in judgement.plan_differences
    ]
    return grid(["in the plan", *NAMES], rows, left=3, empty="The plans are the same.")


def _parted(judgement: Judgement) -> Markup:
    lines = [*judgement.left_out, *shown.parting(judgement.parted)]
    return joined(
        element("h3", "Decisions"),
        [element("p", line[:1].upper() + line[1:]) for line in lines]
        or element("p", "Runs of different seeds have no decisions in common."),
    )


def _values(rows: Sequence[Row]) -> Markup:
    rows, zeros = shown.without_zeros(rows)
    intervals = any(one.interval for one in rows)
    cells: list[list[Child]] = []
    for one in rows:
        chip = CHIPS.get(one.judged)
        cells.append([
            one.name,
            element("span", _unbroken(one), class_=f"chip {chip}")
            if chip
            else element("span", _unbroken(one), class_="soft"),
            *shown.sides(one),
            shown.signed(one.difference, one.unit),
            *([shown.interval(one.interval, one.unit)] if intervals else []),
            shown.percent(one.relative),
        ])  # fmt: skip
    heads = ["", "judged", *NAMES, "difference", *(["95 % interval"] if intervals else []), "%"]
    return joined(grid(heads, cells, left=2), element("p", zeros, class_="soft") if zeros else None)


def _unbroken(one: Row) -> str:
    return shown.judged(one).replace(" ", "\u00a0")


def _expectations(first: Sequence[Run], second: Sequence[Run]) -> Markup:
    results = [
        [{result.name: result for result in run.verdict.results} for run in side] for side in (first, second)
    ]
    names = dict.fromkeys(name for side in results for run in side for name in run)
    rows: list[list[Child]] = [
        [name, *(_side([run[name] for run in side if name in run]) for side in results)] for name in names
    ]
    return grid(["expectation", *NAMES], rows, left=3, empty="Nothing was expected.")


def _side(results: Sequence[Result]) -> Child:
    """The verdict and finding of one run, or how many of each there are."""
    if not results:
        return DASH
    if len(results) == 1:
        return joined(_chip(results[0].status), element("div", results[0].sentence, class_="finding"))
    counts = Counter(result.status for result in results)
    missed = next((result.sentence for result in results if result.status != "PASS"), None)
    return joined(
        [joined(_chip(status, f"{many} {status}"), " ") for status, many in sorted(counts.items())],
        element("div", f"for example: {missed}", class_="finding") if missed else None,
    )


def _chip(status: RunStatus, words: str = "") -> Markup:
    return element("span", words or status, class_=f"chip {status}")
