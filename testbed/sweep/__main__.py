"""Run scenarios with many seeds: `python -m testbed.sweep scenarios/faults --seeds 1-200`.

Prints each run that did not pass, with the command that repeats it, and a line for each scenario. A file with
the key `sweep` is a grid, a sample or a search over a scenario's parameters (docs/sweeps.md).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Literal, Self

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from testbed.command import run_command, terminal
from testbed.errors import Problem, ScenarioError
from testbed.run import place
from testbed.runs import Wanted, run_all
from testbed.sweep.asked import (
    EngineName,
    parse_seeds,
    refuse_for_files,
    refuse_for_scenarios,
    runs_of,
    scenario_files,
)
from testbed.sweep.file import is_sweep_file
from testbed.sweep.outcome import Row, Sweep, discard, exit_code, row, table, tally
from testbed.verdict import STYLES

app = typer.Typer(add_completion=False)
OUT: Final = Path("runs/sweep")
MAX_JOBS: Final = 64
EVERY: Final = 10
"""Without a terminal there is a line after so many runs."""


PathsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="Scenario files (YAML), and directories of them; or one sweep file.",
        show_default=False,
    ),
]
SeedsOption = Annotated[
    str | None,
    typer.Option(
        metavar="SEEDS",
        help="Such as 1-200 or 3,7,20-29; by default the scenario's own.",
        show_default=False,
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_JOBS,
        help="Runs at a time; each needs 4 GiB and a core. By default as many as there are cores.",
        show_default=False,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        help="Where run directories and sweep.json go; by default runs/sweep/ and the name of PATH.",
        show_default=False,
    ),
]


@app.command()
def sweep(
    paths: PathsArgument,
    *,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    out: OutOption = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Replaces one value.")
    ] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Where a sweep file's runs go: this machine, or a Ray cluster.")
    ] = "local",
    keep: Annotated[Literal["failed", "all"], typer.Option(help="Run directories that stay.")] = "failed",
    report: Annotated[bool, typer.Option("--report/--no-report", help="Make each report.html.")] = False,
) -> None:
    """Run scenarios with many seeds. Exit code: 0 PASS, 1 FAIL, 2 UNKNOWN, 3 bad scenario, 4 bad machine.

    Or run a sweep file. Exit code: 0 every run has a verdict, or the boundary is found, 1 there is none;
    2, 3 and 4 as above.
    """
    console = terminal()
    where = out or OUT / paths[0].resolve().stem
    at_a_time = min(len(os.sched_getaffinity(0)), MAX_JOBS)
    sweep_files = [path for path in paths if is_sweep_file(path)]
    if len(paths) == 1 and sweep_files:
        from testbed.sweep.command import run_file  # noqa: PLC0415 - polars, which `--help` does not need

        refuse_for_files({"--keep": keep != "failed", "--report": report}, paths[0])
        code = run_file(
            paths[0],
            where,
            engine=engine,
            jobs=jobs,
            processors=at_a_time,
            seeds=parse_seeds(seeds) if seeds is not None else (),
            overrides=overrides or (),
            console=console,
        )
        raise typer.Exit(code)
    refuse_for_scenarios(sweep_files, engine=engine)
    files = scenario_files(paths)
    with console.status("checking the scenarios"):
        wanted = runs_of(
            files, parse_seeds(seeds) if seeds is not None else (), tuple(overrides or ()), report=report
        )
    place("auto", None)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = Problem(f"--out {where}", f"cannot be made: {error}", "a writable directory")
        raise ScenarioError(problem) from None
    rows = _run(wanted, where, jobs or at_a_time, console, keep=keep)
    raise typer.Exit(exit_code(rows))


def _run(wanted: Sequence[Wanted], out: Path, jobs: int, console: Console, *, keep: str) -> list[Row]:
    """Run them all and say what became of them; whoever breaks it off is told what became of some."""
    rows: dict[str, Row] = {}
    began_s = time.monotonic()
    try:
        with _Board(console, len(wanted)) as board, closing(run_all(wanted, out, jobs)) as runs:
            for ended in runs:
                one = row(ended)
                if one.status == "PASS" and keep == "failed" and ended.directory is not None:
                    discard(ended.directory)
                    one = msgspec.structs.replace(one, directory=None)
                rows[ended.wanted.name] = one
                board.show(one, list(rows.values()))
    finally:
        in_order = [rows[one.name] for one in wanted if one.name in rows]
        _finish(in_order, wanted, out, time.monotonic() - began_s, console)
    return in_order


def _finish(
    rows: Sequence[Row], wanted: Sequence[Wanted], out: Path, wall_s: float, console: Console
) -> None:
    """sweep.json, what did not pass once more, and a line for each scenario."""
    Sweep(planned=len(wanted), runs=tuple(rows)).write(out / "sweep.json")
    if missed := [one for one in rows if one.status != "PASS"]:
        console.print("did not pass:")
        for one in missed:
            _say(one, console)
    console.print(table(rows, list(dict.fromkeys(str(one.scenario) for one in wanted))))
    console.print(
        f"{len(rows)} of {len(wanted)} runs in {wall_s:.0f} s: {tally(rows)}   {out / 'sweep.json'}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _say(one: Row, console: Console) -> None:
    """A run that did not pass, and below it, by itself so that it can be copied, what repeats it."""
    console.print(Text(one.line, style=STYLES[one.status]), soft_wrap=True)
    console.print(f"        {one.command}", markup=False, highlight=False, soft_wrap=True)


class _Board:
    """What the terminal shows meanwhile: a bar, or a line now and then; at once each that did not pass."""

    def __init__(self, console: Console, planned: int) -> None:
        self._console, self._planned = console, planned
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=planned)

    def show(self, one: Row, ended: Sequence[Row]) -> None:
        """Another has ended; `ended` are all that have."""
        if one.status != "PASS":
            _say(one, self._console)
        if self._bar is not None:
            self._bar.update(self._task, completed=len(ended), description=tally(ended))
        elif len(ended) % EVERY == 0:
            self._console.print(
                f"{len(ended)} of {self._planned} runs: {tally(ended)}", highlight=False, soft_wrap=True
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


if __name__ == "__main__":
    sys.exit(run_command(app))
