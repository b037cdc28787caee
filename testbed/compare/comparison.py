"""Two sides compared: everything that the terminal, the JSON file and the page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from testbed import tables as record
from testbed.compare import bootstrap, differences, overlay, plans
from testbed.compare.decisions import Parted, part
from testbed.compare.differences import Compared, Row
from testbed.compare.overlay import Drawn
from testbed.compare.sides import NAMES, Run, Sides
from testbed.compare.tolerances import Tolerances
from testbed.errors import Problem, RunError
from testbed.measure import Tables

Status = Literal["IDENTICAL", "HOLDS", "WORSE", "UNKNOWN"]
EXIT_CODES: Final[dict[Status, int]] = {"IDENTICAL": 0, "HOLDS": 0, "WORSE": 1, "UNKNOWN": 2}


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    status: Status
    note: str
    first: str
    second: str
    seeds: tuple[tuple[int, ...], tuple[int, ...]]
    paired: bool
    left_out: tuple[str, ...]
    method: str
    unknown: tuple[str, ...]
    """Why runs, or values that a tolerance was given for, cannot be relied on."""
    plan_differences: tuple[plans.PlanDifference, ...]
    parted: tuple[Parted, ...]
    rows: tuple[Row, ...]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


@dataclass(frozen=True)
class Comparison:
    """A judgement, and the curves of all runs behind it."""

    judgement: Judgement
    sides: Sides
    drawn: tuple[tuple[Drawn, ...], tuple[Drawn, ...]]


@dataclass(frozen=True)
class _Seen:
    """What is kept of a run, whose tables would not all fit into memory."""

    values: tuple[float | None, ...]
    drawn: Drawn


def compare(paths: tuple[Path, Path], sides: Sides, tolerances: Tolerances, *, anyway: bool) -> Comparison:
    """Compare all runs of both sides.

    Raises:
        ScenarioError: runs with the same seed were not in the same world, unless `anyway`.
        RunError: records that cannot be read; all of them.
    """
    if sides.paired and not anyway:
        for one, two in zip(sides.first, sides.second, strict=True):
            plans.refuse_other_worlds(one.plan, two.plan)
    first, second = sides.first[0].plan, sides.second[0].plan
    verdicts = (sides.first[0].verdict, sides.second[0].verdict)
    wanted = differences.compared((first, second), verdicts, tolerances)
    seen, parted = _look(sides, wanted)
    rows = [
        differences.row(
            one,
            [run.values[index] for run in seen[0]],
            [run.values[index] for run in seen[1]],
            tolerances,
            paired=sides.paired,
        )
        for index, one in enumerate(wanted)
    ]
    rows = [one for one in rows if one.first is not None or one.second is not None or any(one.never)]
    unknown = [*_distrust(NAMES[0], sides.first), *_distrust(NAMES[1], sides.second)]
    unknown += differences.unanswered(rows, tolerances)
    status, note = _conclude(rows, unknown, parted)
    judgement = Judgement(
        status=status,
        note=note,
        first=str(paths[0]),
        second=str(paths[1]),
        seeds=(_seeds(sides.first), _seeds(sides.second)),
        paired=sides.paired,
        left_out=sides.left_out,
        method=method(sides),
        unknown=tuple(unknown),
        plan_differences=tuple(plans.differences(first, second)),
        parted=tuple(parted),
        rows=tuple(rows),
    )
    drawn = (tuple(run.drawn for run in seen[0]), tuple(run.drawn for run in seen[1]))
    return Comparison(judgement, sides, drawn)


def method(sides: Sides) -> str:
    """Where the intervals come from, or why there are none."""
    counts = len(sides.first), len(sides.second)
    if max(counts) == 1:
        return "one run each: no interval, the differences are those of these two runs"
    together = f"{counts[0]} pairs of runs" if sides.paired else f"{counts[0]} and {counts[1]} runs, unpaired"
    if min(counts) < bootstrap.FEWEST:
        return f"{together}: too few for an interval, which takes {bootstrap.FEWEST}; means are compared"
    return (
        f"{together}: means, and {100 * bootstrap.CONFIDENCE:.0f} % intervals of the percentile bootstrap "
        f"({bootstrap.RESAMPLES:,} resamples; Efron and Tibshirani 1993, widened for few runs)"
    )


def _look(sides: Sides, wanted: Sequence[Compared]) -> tuple[tuple[list[_Seen], list[_Seen]], list[Parted]]:
    """Read all records, those of a pair together, and keep what is needed of them."""
    seen: tuple[list[_Seen], list[_Seen]] = ([], [])
    parted: list[Parted] = []
    problems: list[Problem] = []
    for index in range(max(len(sides.first), len(sides.second))):
        pair: list[Tables] = []
        for kept, side in zip(seen, (sides.first, sides.second), strict=True):
            if index >= len(side):
                continue
            try:
                tables = record.load(side[index].directory)
            except RunError as error:
                problems += error.problems
                continue
            kept.append(_see(side[index], tables, wanted))
            pair.append(tables)
        if sides.paired and len(pair) == len(seen):
            parted.append(part(sides.first[index].plan.seed, *pair))
    if problems:
        raise RunError(*problems)
    return seen, parted


def _see(run: Run, tables: Tables, wanted: Sequence[Compared]) -> _Seen:
    values = tuple(differences.value(one, run.plan, tables, run.verdict) for one in wanted)
    return _Seen(values, overlay.draw(run.plan, tables))


def _distrust(name: str, side: Sequence[Run]) -> list[str]:
    return [
        f"{name}, seed {run.plan.seed}: UNKNOWN, {run.verdict.note} ({run.directory.path})"
        for run in side
        if run.verdict.status == "UNKNOWN"
    ]


def _seeds(side: Sequence[Run]) -> tuple[int, ...]:
    return tuple(run.plan.seed for run in side)


def _conclude(rows: Sequence[Row], unknown: Sequence[str], parted: Sequence[Parted]) -> tuple[Status, str]:
    """Distrust comes first, as in a verdict."""
    judged = [one for one in rows if one.judged not in ("shown", "not measured")]
    worse = sum(one.judged == "worse" for one in judged)
    unclear = sum(one.judged == "unclear" for one in judged)
    perhaps = f", {unclear} unclear: more seeds would tell" if unclear else ""
    if unknown:
        return "UNKNOWN", f"{len(unknown)} reason{'s' if len(unknown) > 1 else ''} not to rely on it"
    if worse:
        return "WORSE", f"{worse} of {len(judged)} judged values worse beyond the tolerance{perhaps}"
    if parted and all(one.identical for one in parted):
        return "IDENTICAL", "the records are the same, row for row"
    return "HOLDS", f"none of {len(judged)} judged values surely worse beyond the tolerance{perhaps}"
