"""Compare runs with those of a baseline: `python -m testbed.compare BASELINE CANDIDATE`.

Both are run directories, or directories of runs of one scenario with several seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from testbed.command import run_command
from testbed.errors import Problem, ScenarioError

app = typer.Typer(add_completion=False)
NAME = "compare.html"


@app.command()
def compare(
    first: Annotated[
        Path,
        typer.Argument(
            metavar="BASELINE", help="The baseline: a run, or a directory of runs.", show_default=False
        ),
    ],
    second: Annotated[
        Path, typer.Argument(metavar="CANDIDATE", help="What is compared with it.", show_default=False)
    ],
    *,
    tolerance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]AMOUNT",
            help="How much worse is still as good: 5% for all, ttft_s.p90=300ms for one.",
            show_default="5%",
        ),
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs of other links, workloads or seeds, too.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the page goes; by default compare.html in CANDIDATE.", show_default=False),
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Leave the page out.")] = False,
    json: Annotated[
        Path | None, typer.Option(help="Where all of it goes as JSON.", show_default=False)
    ] = None,
) -> None:
    """Compare runs with a baseline. Exit code: 0 as good, 1 worse, 2 UNKNOWN, 3 not comparable."""
    # Half a second, which `--help` does not need.
    from testbed.compare import comparison, differences, page, shown, sides, tolerances  # noqa: PLC0415

    read = sides.read(first, second, anyway=anyway)
    units = differences.units((read.first[0].verdict, read.second[0].verdict))
    allowed = tolerances.parse(tolerance or [], units)
    found = comparison.compare((first, second), read, allowed, anyway=anyway)
    console = Console(width=None if sys.stdout.isatty() else shown.WIDE)
    shown.show(found.judgement, console)
    if json is not None:
        _written(lambda: found.judgement.write(json), "--json", json)
    if not no_report:
        place = out or second / NAME
        options = [*(f"--tolerance={one}" for one in tolerance or []), *(["--anyway"] if anyway else [])]
        command = ["python", "-m", "testbed.compare", str(first), str(second), *options]
        _written(lambda: page.write(found, command, place), "--out", place)
        console.print(f"report: {place}", highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(found.judgement.exit_code)


def _written(write: Callable[[], None], option: str, path: Path) -> None:
    try:
        write()
    except OSError as error:
        problem = Problem(f"{option} {path}", f"cannot be written: {error}", "a writable file")
        raise ScenarioError(problem) from None


if __name__ == "__main__":
    sys.exit(run_command(app))
