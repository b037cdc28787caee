"""The program `testbed`: what `python -m testbed.run` and its neighbours do, as subcommands."""

from __future__ import annotations

import sys

import typer

from testbed import calibrate, check, clean, replay, run
from testbed.command import run_command
from testbed.compare import __main__ as compare
from testbed.kernel.build import build
from testbed.record import __main__ as record
from testbed.report import __main__ as report
from testbed.serve import __main__ as serve
from testbed.sweep import __main__ as sweep

app = typer.Typer(add_completion=False, help="A wind tunnel for cross-datacenter LLM serving.")
app.command()(run.run)
app.command()(check.check)
app.command()(calibrate.calibrate)
app.command()(clean.clean)
app.command()(report.report)
app.command(name="replay")(replay.replay_command)
app.command()(sweep.sweep)
app.command()(record.record)
app.command()(compare.compare)
app.command()(serve.serve)
kernel = typer.Typer(help="The kernel that runs take place in.")
app.add_typer(kernel, name="kernel")


@kernel.callback()
def _group() -> None:
    """Keeps `build` a word of its own, although it is the only one."""


@kernel.command(name="build")
def build_kernel() -> None:
    """Build it unless it is there, once per machine (five minutes on two cores), and print where it lies."""
    print(build())


def main() -> None:
    """Run the subcommand and end with its exit code."""
    sys.exit(run_command(app))
