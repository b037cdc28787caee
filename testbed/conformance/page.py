"""The table of all kernels, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed import sections
from testbed.conformance.agreement import Row
from testbed.conformance.measuring import Made
from testbed.conformance.places import PLACES

SECTION = "conformance"
PAGE = "docs/fidelity.md"
AGREES = {"yes": "yes", "no": "**no**", "unknown": "unknown"}


def text(
    rows: Sequence[Row],
    made: Mapping[str, Made],
    labels: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """What `made` each column, by place, the table, and what else there is to say.

    `labels` of the scenarios: what each is called in the table.
    """
    places = [(f"`{name}`", one.release, PLACES[name].clock, one.cpu, one.day) for name, one in made.items()]
    lines = [
        "",
        *sections.table(("kernel", "Linux", "clock", "processor", "measured"), places),
        "",
        *sections.table(header(list(made)), cells(rows, list(made), labels)),
        *([""] if notes else []),
        *(f"- {note}" for note in notes),
        "",
    ]
    return "\n".join(lines)


def header(places: Sequence[str]) -> list[str]:
    """Of the table, for the terminal, too."""
    return ["scenario", "what", "asked", *places, "allowed", "agree"]


def cells(rows: Sequence[Row], places: Sequence[str], labels: Mapping[str, str]) -> list[list[str]]:
    """A line per row. A scenario is named where it begins."""
    lines, last = [], ""
    for row in rows:
        name = labels[row.scenario] if row.scenario != last else ""
        measured = [row.cells.get(place, "left out") for place in places]
        lines.append([name, row.what, row.asked, *measured, row.allowed, AGREES[row.agrees]])
        last = row.scenario
    return lines
