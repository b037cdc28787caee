"""The first thing below the verdict: whether the link was what the scenario says."""

from __future__ import annotations

from collections.abc import Sequence

from testbed import audit
from testbed.audit.finding import ARROWS
from testbed.plan import DIRECTIONS
from testbed.report.markup import Child, Markup, element
from testbed.report.tables import grid


def section(findings: Sequence[audit.Finding]) -> Markup:
    """The answer, every miss in a sentence, what was measured of each direction; folded where all is well."""
    missed = [finding for finding in findings if not finding.ok]
    answer = "The link was not as asked" if missed else "The link was as asked"
    if missed and all(finding.measured == audit.ABSENT for finding in missed):
        answer = "The link was not measured to the end"
    rows: list[list[Child]] = [
        [what, *(_cell(findings, what, direction) for direction in DIRECTIONS)]
        for what in dict.fromkeys(finding.what for finding in findings)
    ]
    measured = grid(["", *ARROWS.values()], rows, left=3)
    summary = f"{len(findings)} measurements, each as asked: what was asked, and what it was"
    return element(
        "section",
        element("h2", answer),
        element("ul", [element("li", finding.sentence) for finding in missed]) if missed else None,
        element(
            "div",
            measured if missed else element("details", element("summary", summary), measured),
            class_="card slim",
        ),
        class_="distrust" if missed else None,
    )


def _cell(findings: Sequence[audit.Finding], what: str, direction: str) -> Markup:
    """All findings of a kind in a direction: one for each loss process of the run, and one of most."""
    return element(
        "div",
        [
            element(
                "div",
                element("span", finding.measured, class_=None if finding.ok else "FAIL"),
                element("span", f"  asked {finding.asked}, allowed {finding.allowed}", class_="soft"),
            )
            for finding in findings
            if (finding.what, finding.direction) == (what, direction)
        ],
    )
