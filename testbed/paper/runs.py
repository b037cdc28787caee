"""Runs of the paper's experiments, and the tables that they left."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import polars as pl

from testbed import runs
from testbed import tables as record
from testbed.errors import Problem, RunError
from testbed.rundir import RunDir
from testbed.runs import Wanted
from testbed.verdict import Verdict


class Done(msgspec.Struct, frozen=True):
    """Its verdict, its tables, and where it is."""

    name: str
    directory: Path
    verdict: Verdict
    tables: dict[str, pl.DataFrame]


def run_all(wanted: Sequence[Wanted], out: Path, jobs: int) -> Generator[Done, None, None]:
    """Run them, as `testbed.runs` does; yields each when it ends.

    Raises:
        RunError: one left nothing to look at; what it said is in the message.
    """
    with closing(runs.run_all(wanted, out, jobs)) as all_runs:
        for one in all_runs:
            if one.directory is None or one.verdict is None:
                raise RunError(Problem(str(one.wanted.scenario), one.left_nothing))
            yield _done(one.wanted, RunDir(one.directory), one.verdict)


def newest(wanted: Sequence[Wanted], out: Path) -> Generator[Done, None, None]:
    """What `run_all` left below `out` the last time; yields them in their order.

    Raises:
        RunError: one is not there, or was made by another version.
    """
    for one in wanted:
        latest = RunDir((out / one.name / "latest").resolve())
        if not latest.verdict.is_file():
            problem = Problem(str(out / one.name / "latest"), "holds no run", next_step="run without --again")
            raise RunError(problem)
        yield _done(one, latest, Verdict.read(latest.verdict))


def _done(wanted: Wanted, run: RunDir, verdict: Verdict) -> Done:
    return Done(wanted.name, run.path, verdict, record.load(run))
