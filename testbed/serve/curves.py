"""Two runs beside each other: values with their differences, and curves on one grid of time."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from polars.exceptions import PanicException

from testbed.compare import comparison, overlay, sides
from testbed.compare.tolerances import Tolerances
from testbed.errors import Problem, RunError, TestbedError
from testbed.report.__main__ import read_plan
from testbed.report.svg import Curve, TimeAxis
from testbed.rundir import RunDir
from testbed.verdict import Verdict

GRID_STEPS: Final = 400
log = logging.getLogger(__name__)


def compare(first: Path, second: Path) -> dict[str, Any]:
    """All that is shown of a comparison; raises ScenarioError or RunError where one cannot be made."""
    try:
        return _compare(first, second)
    except TestbedError:
        raise
    except (Exception, PanicException):  # a record may be damaged in ways that nobody has thought of
        log.exception("%s and %s cannot be compared", first, second)
        again = "python -m testbed.report DIRECTORY makes a record from the journal"
        found = "cannot be compared, as the record of one is damaged; the server's log says how"
        raise RunError(Problem(f"{first.name}, {second.name}", found, "", again)) from None


def _compare(first: Path, second: Path) -> dict[str, Any]:
    runs = [_run(first), _run(second)]
    paired = runs[0].plan.seed == runs[1].plan.seed
    both = sides.Sides((runs[0],), (runs[1],), paired=paired, left_out=())
    found = comparison.compare((first, second), both, Tolerances(), anyway=True)
    axis = overlay.shared_axis([found.drawn[0][0], found.drawn[1][0]])
    judgement: dict[str, Any] = msgspec.to_builtins(found.judgement)
    return {
        "status": judgement["status"],
        "note": judgement["note"],
        "unknown": judgement["unknown"],
        "plan_differences": [str(one) for one in found.judgement.plan_differences],
        "rows": judgement["rows"],
        "times_s": [round(float(t_s), 4) for t_s in _grid(axis)],
        "events": [{"t_s": t_s, "text": text} for t_s, text in axis.events],
        "charts": _charts(found, axis),
    }


def _charts(found: comparison.Comparison, axis: TimeAxis) -> list[dict[str, Any]]:
    """Every chart of the overlay that has something to show, its curves on the common grid."""
    grid = _grid(axis)
    return [
        {
            "title": chart.title,
            "unit": chart.unit,
            "curves": [
                {"label": curve.label, "dashed": curve.dashed, "values": _on_grid(curve, grid)}
                for curve in chart.curves
            ],
        }
        for figure in overlay.figures(found.drawn, axis)
        for chart in figure.charts
    ]


def _grid(axis: TimeAxis) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.linspace(axis.from_s, axis.to_s, GRID_STEPS + 1)


def _on_grid(curve: Curve, grid: np.ndarray[Any, np.dtype[np.float64]]) -> list[float | None]:
    """The value that holds at each moment: the last one before it; nothing beyond the last one."""
    if not curve.times_s:
        return [None] * len(grid)
    places = np.searchsorted(np.asarray(curve.times_s), grid, side="right") - 1
    last_s = curve.times_s[-1] + float(grid[1] - grid[0])
    return [
        _plain(curve.values, int(place)) if place >= 0 and t_s <= last_s else None
        for place, t_s in zip(places, grid, strict=True)
    ]


def _plain(values: Sequence[float | None], place: int) -> float | None:
    value = values[place]
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _run(directory: Path) -> sides.Run:
    run = RunDir(directory)
    try:
        return sides.Run(run, read_plan(run), Verdict.read(run.verdict))
    except (OSError, msgspec.DecodeError) as error:
        again = f"python -m testbed.report {directory} makes it from the journal"
        raise RunError(
            Problem(f"{directory.name}/verdict.json", f"cannot be read: {error}", "", again)
        ) from None
