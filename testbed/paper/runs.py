"""Runs of scenarios as a user would start them, a few at a time, and what they left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import polars as pl

from testbed import record
from testbed.errors import Problem, RunError
from testbed.rundir import RunDir
from testbed.verdict import Verdict


class Wanted(msgspec.Struct, frozen=True):
    """One run: the scenario's file and what `--set` changes in it."""

    name: str
    scenario: Path
    overrides: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """Its verdict, its tables, and where it is."""

    name: str
    directory: Path
    verdict: Verdict
    tables: dict[str, pl.DataFrame]


def run_all(wanted: Sequence[Wanted], out: Path, jobs: int) -> Iterator[Done]:
    """Run them, `jobs` at a time, into directories of their own below `out`; yields them in their order.

    Raises:
        RunError: one left nothing to look at; what it said is in the message.
    """
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        yield from pool.map(lambda one: _run(one, out / one.name), wanted)


def newest(wanted: Sequence[Wanted], out: Path) -> Iterator[Done]:
    """What `run_all` left below `out` the last time; yields them in their order.

    Raises:
        RunError: one is not there, or was made by another version.
    """
    for one in wanted:
        latest = RunDir((out / one.name / "latest").resolve())
        if not latest.verdict.is_file():
            problem = Problem(str(out / one.name / "latest"), "holds no run", next_step="run without --again")
            raise RunError(problem)
        yield _done(one, latest)


def _run(wanted: Wanted, out: Path) -> Done:
    options = [option for override in wanted.overrides for option in ("--set", override)]
    before = set(out.glob("*")) if out.exists() else set()
    command = [
        sys.executable,
        "-m",
        "testbed.run",
        str(wanted.scenario),
        "--quiet",
        "--out",
        str(out),
        *options,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    made = [path for path in out.glob("*") if path not in before and not path.is_symlink()]
    if len(made) != 1 or not RunDir(made[0]).verdict.is_file():
        said = (ended.stderr or ended.stdout).strip()
        raise RunError(
            Problem(str(wanted.scenario), f"left no verdict (exit code {ended.returncode}): {said}")
        )
    return _done(wanted, RunDir(made[0]))


def _done(wanted: Wanted, run: RunDir) -> Done:
    return Done(wanted.name, run.path, Verdict.read(run.verdict), record.load(run))
