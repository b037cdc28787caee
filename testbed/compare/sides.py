"""The runs on each side, found and read, and paired by seed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from testbed.errors import Problem, RunError, ScenarioError
from testbed.plan import Plan
from testbed.report.__main__ import read_plan
from testbed.rundir import RunDir
from testbed.verdict import Verdict

DEEPEST: Final = 3
"""A sweep keeps its runs at <out>/<scenario>-<seed>/<scenario>-<seed>/."""
NAMES: Final = ("baseline", "candidate")
"""Not A and B, which are datacenters."""
SHOWN_SEEDS: Final = 12
RUNS_ALLOWED: Final = "a run directory, or a directory of runs of one scenario, such as a sweep leaves"


@dataclass(frozen=True)
class Run:
    """One run: where it lies, what it was to be, what it was judged to be."""

    directory: RunDir
    plan: Plan
    verdict: Verdict


@dataclass(frozen=True)
class Sides:
    """Runs of both sides. Paired: the n-th ones have the same seed; else each side stands by itself."""

    first: tuple[Run, ...]
    second: tuple[Run, ...]
    paired: bool
    left_out: tuple[str, ...]
    """Runs whose seed the other side lacks, in words."""


def read(first: Path, second: Path, *, anyway: bool) -> Sides:
    """All runs of both sides.

    Raises:
        ScenarioError: a side holds no runs, or those of several scenarios, or a seed twice; or no seed is on
            both sides, unless `anyway`.
        RunError: a run has no verdict that could be read.
    """
    problems: list[Problem] = []
    unjudged: list[Problem] = []
    runs = [_side(path, problems, unjudged) for path in (first, second)]
    if problems:
        raise ScenarioError(*problems)
    if unjudged:
        raise RunError(*unjudged)
    one, two = runs
    common = sorted(one.keys() & two.keys())
    if not common:
        if not anyway:
            found = f"no seed is on both sides: {_seeds(list(one))} there, {_seeds(list(two))} here"
            raise ScenarioError(
                Problem(str(second), found, "runs of the same seeds", "--anyway compares them unpaired")
            )
        return Sides(tuple(one.values()), tuple(two.values()), paired=False, left_out=())
    left_out = [
        f"only the {name} has {_seeds(alone)}"
        for name, side in zip(NAMES, (one, two), strict=True)
        if (alone := [seed for seed in side if seed not in common])
    ]
    return Sides(
        tuple(one[seed] for seed in common),
        tuple(two[seed] for seed in common),
        paired=True,
        left_out=tuple(left_out),
    )


def _side(path: Path, problems: list[Problem], unjudged: list[Problem]) -> dict[int, Run]:
    """The runs below `path`, by seed in order; what is wrong with them goes to the lists."""
    directories = run_directories(path)
    if not directories:
        found = "is not there" if not path.exists() else "holds no run"
        problems.append(Problem(str(path), found, RUNS_ALLOWED))
    runs: list[tuple[Plan, RunDir]] = []
    for directory in directories:
        try:
            runs.append((read_plan(directory), directory))
        except ScenarioError as error:
            problems += error.problems
    names = sorted({plan.name for plan, _ in runs})
    if len(names) > 1:
        problems.append(
            Problem(str(path), f"holds runs of {len(names)} scenarios: {', '.join(names)}", RUNS_ALLOWED)
        )
    twice = [seed for seed, times in Counter(plan.seed for plan, _ in runs).items() if times > 1]
    if twice and len(names) == 1:
        paths = ", ".join(str(run.path) for plan, run in runs if plan.seed == twice[0])
        problems.append(Problem(str(path), f"holds seed {twice[0]} twice: {paths}", "one run for each seed"))
    read = [Run(run, plan, verdict) for plan, run in runs if (verdict := _verdict(run, unjudged))]
    return {run.plan.seed: run for run in sorted(read, key=lambda run: run.plan.seed)}


def run_directories(path: Path) -> list[RunDir]:
    """`path`, if it is a run, else the runs below it, in order of their paths; links are not followed."""
    found = []
    for directory, below, files in os.walk(path):
        here = Path(directory)
        if "plan.json" in files:
            found.append(RunDir(here))
        depth = len(here.relative_to(path).parts)
        below[:] = [] if "plan.json" in files or depth >= DEEPEST else sorted(below)
    return sorted(found, key=lambda run: run.path)


def _verdict(run: RunDir, unjudged: list[Problem]) -> Verdict | None:
    try:
        return Verdict.read(run.verdict)
    except (OSError, msgspec.DecodeError) as error:
        again = f"python -m testbed.report {run.path} makes it from the journal"
        unjudged.append(Problem(str(run.verdict), f"cannot be read: {error}", next_step=again))
        return None


def _seeds(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, sorted(seeds)[:SHOWN_SEEDS]))
    more = len(seeds) - SHOWN_SEEDS
    return f"seed{'s' if len(seeds) > 1 else ''} {listed}{f' and {more} more' if more > 0 else ''}"
