"""One point of a sweep, from its plan: `python -m testbed.sweep.point PLACE --out DIR -- SCENARIO ...`.

PLACE has plan.json and scenario.yaml, as whoever started the sweep resolved them: a worker needs neither the
scenario's traces nor its profiles, and every engine runs the same bytes. What follows `--` is what a user
would give `testbed.run` to see this run again, for its manifest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from testbed.command import run_command
from testbed.kernel.supervise import tied
from testbed.plan import Plan
from testbed.run import execute, new_run_dir, place
from testbed.rundir import RunDir
from testbed.runs import Wanted

app = typer.Typer(add_completion=False)


class Resolved(Wanted, frozen=True, kw_only=True):
    """A run whose plan lies in `place`, below the digest of its result."""

    digest: str
    place: Path

    def start_command(self, out: Path) -> list[str]:
        return start_command(self.place, out, self.arguments)


def start_command(place: Path, out: Path, arguments: Sequence[str]) -> list[str]:
    """Starts a process that ends with the thread that starts it, however that comes to its end."""
    options = ["--out", str(out), "--", *arguments]
    return [*tied("TERM"), sys.executable, "-m", "testbed.sweep.point", str(place), *options]


@app.command()
def point(
    place_: Annotated[Path, typer.Argument(metavar="PLACE", help="Has plan.json and scenario.yaml.")],
    arguments: Annotated[list[str], typer.Argument(help="What `testbed.run` would be given.")],
    *,
    out: Annotated[Path, typer.Option(help="Where the run directory goes.")],
) -> None:
    """Run a resolved scenario. Exit code: 0 PASS, 1 FAIL, 2 UNKNOWN, 4 bad machine."""
    given = RunDir(place_)
    plan = Plan.read(given.plan)
    where, clock = place("auto", "real" if plan.compute == "real" else None)
    directory = new_run_dir(out, plan)
    directory.scenario.write_bytes(given.scenario.read_bytes())
    plan.write(directory.plan)
    sys.argv[1:] = arguments  # the manifest has the command that makes this run again
    judged = execute(directory, plan, where, clock, Console(), quiet=True, report=False)
    raise typer.Exit(judged.exit_code)


def main() -> None:
    """Run the command and end with its exit code."""
    sys.exit(run_command(app))


if __name__ == "__main__":
    main()
