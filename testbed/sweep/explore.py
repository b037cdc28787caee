"""A sweep file's runs: all resolved before the first one starts; those run that are missing; all gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from testbed.capture import tcpdump
from testbed.errors import Problem, ScenarioError
from testbed.plan import Plan
from testbed.resolve import load_and_resolve
from testbed.rundir import RunDir
from testbed.runs import Ended, Wanted
from testbed.scenario.source import MAX_PROBLEMS, KeyPath
from testbed.sweep import environment, file
from testbed.sweep.cache import Points
from testbed.sweep.outcome import Row
from testbed.sweep.point import Resolved
from testbed.sweep.points import Axis, Point, as_text, overrides
from testbed.sweep.results import Measure, Result, measures, with_measures
from testbed.sweep.search import Boundary, Outcome, agreed, bisect
from testbed.verdict import Verdict

Engine: TypeAlias = Callable[[Sequence[Wanted], Path], Generator[Ended, None, None]]
Told: TypeAlias = Callable[["Job", Row], None]
NAME_LETTERS: Final = 16


@dataclass(frozen=True)
class Job:
    """A point with a seed, resolved."""

    point: Point
    seed: int
    run: Resolved


@dataclass(frozen=True)
class At:
    """Where runs take place, where their results are kept, who hears of each."""

    points: Points
    engine: Engine
    told: Told


@dataclass
class Sweep:
    """A sweep file and all that its runs need; `results` grow while it goes on."""

    wanted: file.Wanted
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    plans: Path
    """Where plans are written, one directory for each digest."""
    measures: list[Measure] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    here: environment.Environment = field(default_factory=environment.here)

    def resolve(self, points: Sequence[Point]) -> list[Job]:
        """Every point with its first seed, then every one with its second.

        Raises:
            ScenarioError: the scenario is none, or not with these values; the problems of all.
        """
        jobs: list[Job] = []
        at: dict[Problem, list[Point]] = {}
        for seed in self.seeds or (None,):
            for point in points:
                try:
                    jobs.append(self._job(point, seed))
                except ScenarioError as error:
                    for problem in error.problems:
                        at.setdefault(self._placed(problem, point), []).append(point)
        if at:
            everywhere = len(points) * max(len(self.seeds), 1)
            problems = [
                one
                if one.where.startswith(self.wanted.source.file) or len(where) == everywhere
                else replace(one, found=f"with {self.named(where[0])}: {one.found}")
                for one, where in at.items()
            ]
            raise ScenarioError(*problems[:MAX_PROBLEMS])
        return jobs

    def named(self, point: Point) -> str:
        """Its values that are not those of all points, for people."""
        pairs = zip(self.axes, point, strict=True)
        return " ".join(f"{axis.path}={as_text(value)}" for axis, value in pairs if axis.varies)

    def _placed(self, problem: Problem, point: Point) -> Problem:
        """A problem with one of the sweep's own values, at its place in the sweep file."""
        source = self.wanted.source
        for axis, value, change in zip(self.axes, point, overrides(self.axes, point), strict=True):
            if not problem.where.startswith(f"--set {change}"):
                continue
            path: KeyPath = ("parameters", axis.path)
            if path not in source.lines:
                path = ("search",)
            elif (*path, 0) in source.lines:
                path = (*path, axis.values.index(value))
            return replace(problem, where=source.where(path))
        return problem

    def _job(self, point: Point, seed: int | None) -> Job:
        scenario = self.wanted.scenario
        changes = (*self.overrides, *overrides(self.axes, point))
        loaded, plan = load_and_resolve(scenario, overrides=changes, seed=seed)
        tcpdump.require(plan.captures)
        if not self.measures:
            self._check(plan)
            self.measures = measures(self.wanted, plan)
        draft = RunDir(self.plans / "draft")
        draft.path.mkdir(exist_ok=True)
        plan.write(draft.plan)
        draft.scenario.write_bytes(loaded.source.text)
        digest = environment.digest_of(draft.plan.read_bytes(), self.here)
        place = self.plans / digest
        if not place.exists():
            draft.path.rename(place)
        name = digest[:NAME_LETTERS]
        run = Resolved(name, scenario, changes, plan.seed, report=False, digest=digest, place=place)
        return Job(point, plan.seed, run)

    def _check(self, plan: Plan) -> None:
        """What the sweep file says of the scenario, against one plan of it."""
        problems: list[Problem] = []
        last_ns = plan.duration_ns + plan.drain_ns
        for number, one in enumerate(self.wanted.file.measure):
            until_ns = plan.duration_ns if one.to is None else one.to
            path: KeyPath = ("measure", number)
            if one.start >= until_ns or until_ns > last_ns:
                found, allowed = (
                    f"{one.name} has an empty window, or one beyond the run",
                    "a window within it",
                )
                problems.append(Problem(self.wanted.source.where(path), found, allowed))
        search = self.wanted.file.search
        known = [name for one in plan.expectations for name in (one.name, one.metric)]
        if search and search.expectation is not None and search.expectation not in known:
            where = self.wanted.source.where(("search", "expectation"))
            found = f"the scenario expects no {search.expectation}"
            problems.append(Problem(where, found, ", ".join(dict.fromkeys(known)) or "nothing is expected"))
        if problems:
            raise ScenarioError(*problems)

    def run(self, jobs: Sequence[Job], at: At) -> list[Result]:
        """Run what has no result yet, or one that cannot be trusted; the results of all, in their order."""
        missing = {job.run.digest: job for job in jobs if not _settled(at.points.row(job.run.digest))}
        try:
            with closing(at.engine([job.run for job in missing.values()], at.points.scratch)) as runs:
                for ended in runs:
                    assert isinstance(ended.wanted, Resolved), "engines return what they are given"
                    digest = ended.wanted.digest
                    at.told(missing[digest], at.points.keep(digest, ended))
        finally:
            gathered = [
                with_measures(Result(job.point, job.seed, job.run.digest, row), at.points, self.measures)
                for job in jobs
                if (row := at.points.row(job.run.digest))
            ]
            self.results += gathered
        return gathered

    def outcome(self, found: Result, points: Points) -> Outcome:
        """What a run says to the search."""
        search = self.wanted.file.search
        assert search is not None
        if search.expectation is None or found.row.status == "UNKNOWN":
            return _OUTCOMES[found.row.status]
        return expectation_outcome(points.verdict(found.digest), search.expectation)


@dataclass(frozen=True)
class Probe:
    """A value that a search tried."""

    value: str
    outcome: Outcome
    by_seed: dict[int, str]


def search(sweep: Sweep, first: Sequence[Job], at: At, probed: Callable[[Probe], None]) -> Boundary:
    """Look for the boundary; `first` are the jobs at both ends."""
    asked = sweep.wanted.file.search
    assert asked is not None
    kind, low, high, close = sweep.wanted.searched()
    path = bisect(low, high, close, kind)
    values = next(path)
    jobs = list(first)
    while True:
        found = sweep.run(jobs, at)
        outcomes = []
        for value in values:
            written = kind.write(value)
            of_value = [one for one in found if one.point[-1] == written]
            outcome = agreed([sweep.outcome(one, at.points) for one in of_value], asked.agree)
            outcomes.append(outcome)
            probed(Probe(str(written), outcome, {one.seed: one.row.status for one in of_value}))
        try:
            values = path.send(outcomes)
        except StopIteration as end:
            boundary: Boundary = end.value
            return boundary
        jobs = sweep.resolve([(*first[0].point[:-1], kind.write(value)) for value in values])


def search_axis(wanted: file.Wanted) -> Axis:
    """What is searched, as the last parameter."""
    asked = wanted.file.search
    assert asked is not None
    kind, low, high, close = wanted.searched()
    return Axis(asked.parameter, (), kind, low, high, close.ratio is not None)


def ends(wanted: file.Wanted) -> list[Point]:
    """The two points between which a search looks."""
    kind, low, high, _ = wanted.searched()
    fixed = tuple(axis.values[0] for axis in wanted.axes)
    return [(*fixed, kind.write(value)) for value in (low, high)]


def expectation_outcome(verdict: Verdict, name: str) -> Outcome:
    """Whether all expectations with that name, or on that metric, hold in a run."""
    statuses = {one.status for one in verdict.results if name in (one.name, one.metric)}
    if verdict.trust or not statuses or "UNKNOWN" in statuses:
        return "unknown"
    return "fails" if "FAIL" in statuses else "holds"


def apart(boundary: Boundary) -> float:
    """By which share the larger side of a boundary is larger."""
    assert boundary.holds is not None
    assert boundary.fails is not None
    low, high = sorted((boundary.holds, boundary.fails))
    return high / low - 1 if low > 0 else math.inf


def _settled(row: Row | None) -> bool:
    """A failure is a result; what cannot be trusted is none."""
    return row is not None and row.status != "UNKNOWN"


_OUTCOMES: Final[dict[str, Outcome]] = {"PASS": "holds", "FAIL": "fails", "UNKNOWN": "unknown"}
