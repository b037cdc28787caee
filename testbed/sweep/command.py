"""What `python -m testbed.sweep FILE` does with a sweep file, and what it says meanwhile."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from testbed.kernel.scratch import scratch
from testbed.readable import number
from testbed.run import place
from testbed.runs import run_all
from testbed.sweep import explore, page, remote
from testbed.sweep.asked import EngineName
from testbed.sweep.cache import Points, opened
from testbed.sweep.explore import Engine, Job, Probe
from testbed.sweep.file import read_sweep, scenario_there
from testbed.sweep.outcome import Row, Sweep, tally
from testbed.sweep.results import frame
from testbed.sweep.search import Boundary
from testbed.verdict import EXIT_CODES, STYLES, Status

_WORDS: Final[dict[tuple[int, bool], tuple[str, Status]]] = {
    (0, False): ("COMPLETE", "PASS"),
    (2, False): ("INCOMPLETE", "UNKNOWN"),
    (0, True): ("FOUND", "PASS"),
    (1, True): ("NOT FOUND", "FAIL"),
    (2, True): ("UNKNOWN", "UNKNOWN"),
}
"""What the page says of an exit code, for a search and for all else."""


def run_file(
    path: Path,
    out: Path,
    *,
    engine: EngineName,
    jobs: int | None,
    processors: int,
    seeds: Sequence[int],
    overrides: Sequence[str],
    console: Console,
) -> int:
    """Run a sweep file into `out`; `jobs`: runs at a time, by default `processors` or all of the cluster.

    Exit code of a grid or a sample: 0 when every run has a verdict, PASS or FAIL, 2 when one is UNKNOWN. Of a
    search: 0 found, 1 no boundary between the ends, 2 a run at which it could not be told.
    """
    with scratch("sweep") as (plans,):
        with console.status("resolving every point"):
            sweep, first = checked_file(path, seeds, overrides, plans)
        if engine == "local":
            place("auto", None)
        with _engine(engine, jobs, processors) as start, opened(out) as points:
            return _Board(sweep, first, points, start, console).run()


def checked_file(
    path: Path, seeds: Sequence[int], overrides: Sequence[str], plans: Path
) -> tuple[explore.Sweep, list[Job]]:
    """The sweep and its runs, of a search those at its ends; `seeds` instead of the file's, if there are any.

    Raises ScenarioError with all problems of the file; if it has none, with those of all points.
    """
    wanted = read_sweep(path)
    scenario_there(wanted)
    axes = (*wanted.axes, explore.search_axis(wanted)) if wanted.file.search else wanted.axes
    sweep = explore.Sweep(wanted, axes, tuple(seeds) or wanted.file.seeds, tuple(overrides), plans)
    return sweep, sweep.resolve(explore.ends(wanted) if wanted.file.search else wanted.points())


@contextmanager
def _engine(name: EngineName, jobs: int | None, processors: int) -> Iterator[Engine]:
    if name == "local":
        yield partial(run_all, jobs=jobs or processors)
        return
    with remote.Cluster(jobs) as cluster:
        yield cluster.run_all


class _Board:
    """Runs a sweep and tells of it: a line for each run, and at the end what came out and where it is."""

    def __init__(
        self,
        sweep: explore.Sweep,
        first: Sequence[Job],
        points: Points,
        engine: Engine,
        console: Console,
    ) -> None:
        self._sweep, self._first, self._console = sweep, first, console
        self._at = explore.At(points, engine, self._told)
        self._out = points.out
        self._probes: list[Probe] = []
        self._ran = 0
        self._search = sweep.wanted.file.search

    def run(self) -> int:
        """To the end; whoever breaks it off is told how to go on."""
        known = sum(self._at.points.row(job.run.digest) is not None for job in self._first)
        what = (
            "the ends of a search"
            if self._search
            else f"{len({repr(job.point) for job in self._first})} points"
        )
        self._say(f"{self._sweep.wanted.path}: {what}, {len(self._first)} runs, {known} of them done before")
        began_s = time.monotonic()
        boundary = None
        try:
            if self._search:
                boundary = explore.search(self._sweep, self._first, self._at, self._probed)
            else:
                self._sweep.run(self._first, self._at)
        except KeyboardInterrupt:
            self._write(f"broken off after {len(self._sweep.results)} runs", EXIT_CODES["UNKNOWN"], None)
            self._say(f"{self._ran} runs were made, and are kept; the same command goes on with the rest")
            raise
        finding, code = self._conclude(boundary)
        self._write(finding, code, boundary)
        self._say(f"{self._ran} runs in {time.monotonic() - began_s:.0f} s: {finding}")
        self._say(f"{self._out / 'sweep.html'}  {self._out / 'results.parquet'}")
        return code

    def _conclude(self, boundary: Boundary | None) -> tuple[str, int]:
        """What came out, in a sentence, and the exit code."""
        results = self._sweep.results
        if boundary is not None:
            return _sentence(boundary, self._sweep)
        self._list_missed()
        unknown = any(one.row.status == "UNKNOWN" for one in results)
        return tally([one.row for one in results]), EXIT_CODES["UNKNOWN" if unknown else "PASS"]

    def _list_missed(self) -> None:
        """Runs that cannot be trusted, with what repeats them: they are holes in the map."""
        for one in self._sweep.results:
            if one.row.status == "UNKNOWN":
                self._console.print(Text(one.row.line, style=STYLES["UNKNOWN"]), soft_wrap=True)
                self._say(f"        {one.row.command}")

    def _told(self, job: Job, row: Row) -> None:
        """A run has ended."""
        self._ran += 1
        line = Text(f"{self._ran:4}  ")
        line.append(f"{row.status:8}", style=STYLES[row.status])
        line.append(f"{self._sweep.named(job.point)} seed {job.seed}   {row.wall_s:.0f} s")
        self._console.print(line, soft_wrap=True, highlight=False)

    def _probed(self, probe: Probe) -> None:
        assert self._search is not None
        by_seed = ", ".join(f"seed {seed} {status}" for seed, status in probe.by_seed.items())
        self._probes.append(probe)
        self._say(f"      {self._search.parameter} {probe.value}: {probe.outcome} ({by_seed})")

    def _write(self, finding: str, code: int, boundary: Boundary | None) -> None:
        """results.parquet, sweep.json and sweep.html of all that there is."""
        word, status = _WORDS[code, self._search is not None]
        sweep, results = self._sweep, self._sweep.results
        frame(sweep.axes, results, sweep.measures).write_parquet(self._out / "results.parquet")
        rows = tuple(one.row for one in results)
        Sweep(planned=len(self._first), runs=rows).write(self._out / "sweep.json")
        if boundary is not None:
            (self._out / "boundary.json").write_bytes(msgspec.json.encode(boundary) + b"\n")
        told = page.Told(
            file=str(sweep.wanted.path),
            scenario=str(sweep.wanted.scenario),
            question=sweep.wanted.file.question,
            word=word,
            finding=finding,
            status=status,
            axes=sweep.axes,
            measures=sweep.measures,
            results=results,
            probes=self._probes,
            command=shlex.join(["python", "-m", "testbed.sweep", *sys.argv[1:]]),
        )
        page.write(self._out / "sweep.html", told)

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _sentence(boundary: Boundary, sweep: explore.Sweep) -> tuple[str, int]:
    """What a search came to, and the exit code."""
    search = sweep.wanted.file.search
    assert search is not None
    kind = sweep.wanted.searched()[0]
    what = f'"{search.expectation}"' if search.expectation else "the verdict PASS"
    if boundary.status == "found":
        assert boundary.holds is not None
        assert boundary.fails is not None
        holds, fails = kind.write(boundary.holds), kind.write(boundary.fails)
        apart = number(100 * explore.apart(boundary))
        return f"{what} holds at {search.parameter} {holds} and fails at {fails}, {apart} % apart", 0
    if boundary.status == "none":
        ends = f"{search.start} and at {search.to}"
        return f"no boundary: {what} {boundary.both} at both ends, at {search.parameter} {ends}", 1
    assert boundary.unknown_at is not None
    return f"cannot be told at {search.parameter} {kind.write(boundary.unknown_at)}", 2
