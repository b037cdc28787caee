"""sweep.html: the question, what came out, a picture of each measure, every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.report.document import asset, badge, document
from testbed.report.markup import Child, Markup, element, joined
from testbed.report.tables import grid
from testbed.sweep.drawing import MARKS, Picture, picture, shown
from testbed.sweep.explore import Probe
from testbed.sweep.points import Axis, Point, as_text
from testbed.sweep.results import Measure, Result
from testbed.verdict import EXIT_CODES, Status

MOST_OPEN: Final = 40
"""A table of more runs is folded."""
BADGES: Final[dict[str, Status]] = {"holds": "PASS", "fails": "FAIL", "unknown": "UNKNOWN"}


@dataclass(frozen=True)
class Told:
    """All that the page says; `word` and `finding`: what came out, as one and in a sentence."""

    file: str
    scenario: str
    question: str
    word: str
    finding: str
    status: Status
    """Which of them the word looks like."""
    axes: tuple[Axis, ...]
    measures: Sequence[Measure]
    results: Sequence[Result]
    probes: Sequence[Probe] = ()
    command: str = ""


def write(path: Path, told: Told) -> None:
    """Write the page; self-contained."""
    axes = told.axes
    if told.probes:
        # What a search tried is as good as a list of values, in their order.
        tried = {one.point[-1] for one in told.results}
        kind = axes[-1].kind
        assert kind is not None, "a search is over quantities"
        axes = (*axes[:-1], Axis(axes[-1].path, tuple(sorted(tried, key=kind.parse)), kind))
    body = element(
        "main",
        _header(told),
        _counts(told),
        _path(told, axes[-1].path) if told.probes else None,
        [
            element(
                "figure",
                element("figcaption", element("strong", one.name), " ", element("span", _remark(told))),
                picture(Picture(axes, told.results, one), f"measure-{number}"),
                class_="card",
            )
            for number, one in enumerate(told.measures)
        ],
        _missed(told),
        _all(told),
        element(
            "section",
            element("h2", "How to reproduce"),
            element("div", element("pre", told.command), element("p", _FILES, class_="soft"), class_="card"),
        ),
    )
    style = asset("sweep.css", "testbed.sweep")
    path.write_text(document(f"sweep: {told.question}", body, style), encoding="utf-8")


_FILES: Final = (
    "results.parquet has a row for each run; points/ has what each left, by the digest of plan, kernel and "
    "project. The same command again runs only what is missing or was UNKNOWN."
)


def _header(told: Told) -> Markup:
    outcome = badge(told.word, told.finding, told.status)
    over = element("div", f"sweep {told.file} of {told.scenario}", class_="overline")
    return element("header", element("div", over, element("h1", told.question)), outcome, class_="top")


def _counts(told: Told) -> Markup:
    counts = Counter(one.row.status for one in told.results)
    numbers: dict[str, object] = {
        "points": len(_points(told)),
        "seeds": len({one.seed for one in told.results}),
        **{status: counts[status] for status in EXIT_CODES},
        "virtual time": f"{sum(one.row.virtual_s for one in told.results):,.0f} s",
        "time of all runs together": f"{sum(one.row.wall_s for one in told.results):,.0f} s",
    }
    items = [
        element("div", element("dt", name), element("dd", str(value))) for name, value in numbers.items()
    ]
    return element("dl", items, class_="numbers")


def _points(told: Told) -> list[Point]:
    """Each once, in the order of the sweep."""
    return list({repr(one.point): one.point for one in told.results}.values())


def _remark(told: Told) -> str:
    seeds = len({one.seed for one in told.results})
    return f"median of {seeds} seeds" if seeds > 1 else ""


def _path(told: Told, parameter: str) -> Markup:
    """The values that a search tried, in its order."""
    rows: list[list[Child]] = [
        [
            str(number),
            f"{parameter} {probe.value}",
            element("span", probe.outcome, class_=f"chip {BADGES[probe.outcome]}"),
            ", ".join(f"seed {seed}: {status}" for seed, status in probe.by_seed.items()),
        ]
        for number, probe in enumerate(told.probes, 1)
    ]
    table = grid(["", "tried", "it", "runs"], rows, left=4)
    return element("section", element("h2", "The search"), element("div", table, class_="card"))


def _missed(told: Told) -> Markup | None:
    """Every run that did not pass: what it missed, and what repeats it."""
    missed = [one for one in told.results if one.row.status != "PASS"]
    if not missed:
        return None
    rows: list[list[Child]] = [
        [
            _chip(one.row.status),
            f"{_named(told, one)} seed {one.seed}",
            joined(
                element("div", "; ".join(one.row.failed), class_="finding"), element("code", one.row.command)
            ),
        ]
        for one in missed
    ]
    table = grid(["", "point", "what did not hold, and what repeats it"], rows, left=3)
    heading = f"{len(missed)} runs that did not pass"
    return element("section", element("h2", "Did not pass"), _card(heading, table, len(missed)))


def _all(told: Told) -> Markup:
    heads = [axis.path for axis in told.axes] + ["seed", "", *(one.name for one in told.measures), "record"]
    rows: list[list[Child]] = [
        [
            *(as_text(value) for value in one.point),
            str(one.seed),
            _chip(one.row.status),
            *(shown(one.measured.get(each.name), one.units.get(each.name, "")) for each in told.measures),
            element("code", one.row.record_digest[:12]),
        ]
        for one in told.results
    ]
    table = grid(heads, rows, left=len(told.axes) + 2)
    return element("section", element("h2", "Every run"), _card(f"{len(rows)} runs", table, len(rows)))


def _card(summary: str, table: Markup, rows: int) -> Markup:
    """Open, or folded where it is long."""
    inside = element("details", element("summary", summary), table) if rows > MOST_OPEN else table
    return element("div", inside, class_="card")


def _chip(status: Status) -> Markup:
    return element("span", MARKS[status], class_=f"chip {status}")


def _named(told: Told, one: Result) -> str:
    return ", ".join(
        f"{axis.path} {as_text(value)}"
        for axis, value in zip(told.axes, one.point, strict=True)
        if axis.varies
    )
