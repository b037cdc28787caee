"""Figures of several kernels side by side, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from testbed.conformance.figures import ALLOWED, GOODPUT_SPREAD, Figure

Agrees = Literal["yes", "no", "unknown"]

EXIT_CODES: Final[dict[Agrees, int]] = {"yes": 0, "no": 1, "unknown": 2}
UNKNOWN: Final = "UNKNOWN"
"""Of a kernel whose run cannot be trusted."""


class Ran(msgspec.Struct, frozen=True):
    """What became of one scenario in one kernel: figures, or why there are none."""

    scenario: str
    place: str
    figures: tuple[Figure, ...] = ()
    left_out: str = ""
    """Why it was not run: no fault of anybody's."""
    unknown: tuple[str, ...] = ()
    """Why it cannot be trusted."""


class Row(msgspec.Struct, frozen=True):
    """One figure in every kernel."""

    scenario: str
    what: str
    asked: str
    cells: dict[str, str]
    """By place; empty text: not run there."""
    allowed: str
    agrees: Agrees


def rows(runs: Sequence[Ran], places: Sequence[str]) -> list[Row]:
    """A row for each figure of each scenario, in the order in which scenarios come.

    A scenario of which no run can be trusted has a row that says so.
    """
    by_scenario: dict[str, dict[str, Ran]] = {}
    for run in runs:
        by_scenario.setdefault(run.scenario, {})[run.place] = run
    return [row for name, found in by_scenario.items() for row in _of_scenario(name, found, places)]


def exit_code(table: Sequence[Row]) -> int:
    """1 when something does not agree; else 2 when something is not known, or nothing was measured; else 0.

    Each run is trusted, or not, for itself: one that is not takes nothing away from two that differ.
    """
    found = {row.agrees for row in table}
    worst: Agrees = "no" if "no" in found else "unknown" if found != {"yes"} else "yes"
    return EXIT_CODES[worst]


def _of_scenario(name: str, found: Mapping[str, Ran], places: Sequence[str]) -> Iterator[Row]:
    unknown = {place: UNKNOWN for place, run in found.items() if run.unknown}
    keys = dict.fromkeys((one.kind, one.what) for run in found.values() for one in run.figures)
    if not keys and unknown:
        yield Row(name, "verdict", "", unknown, ALLOWED["verdict"], "unknown")
    measured = [place for place in places if place in found and found[place].figures]
    for kind, what in keys:
        figures = {
            place: one
            for place in measured
            for one in found[place].figures
            if (one.kind, one.what) == (kind, what)
        }
        missing = {place: "not measured" for place in measured if place not in figures}
        cells = {place: one.shown for place, one in figures.items()} | missing | unknown
        agrees: Agrees = "unknown" if missing or unknown else "yes"
        if not _agree(list(figures.values())):
            agrees = "no"
        asked = next(iter(figures.values())).asked
        yield Row(name, what, asked, cells, ALLOWED[kind], agrees)


def _agree(figures: Sequence[Figure]) -> bool:
    if not all(one.sound for one in figures):
        return False
    if figures[0].kind == "verdict":
        return len({one.shown for one in figures}) == 1
    values = [one.value for one in figures if one.value is not None]
    return not values or max(values) <= min(values) * (1 + GOODPUT_SPREAD)
