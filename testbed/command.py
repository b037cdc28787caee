"""A command line ends with this project's exit codes and without a traceback, whatever the user does."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from testbed.errors import Problem, RunError, ScenarioError, TestbedError


def run_command(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run `app` on these arguments (those of the program when None); returns the exit code.

    Wrong arguments end with 3, not with typer's 2, which means UNKNOWN here. So does Ctrl-C, with 2.
    """
    try:
        return app(args=arguments, standalone_mode=False) or 0
    except typer.TyperException as error:
        problem = Problem("arguments", str(error), next_step="see --help")
        print(problem, file=sys.stderr)
        return ScenarioError.exit_code
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except typer.Abort:
        print("interrupted", file=sys.stderr)
        return RunError.exit_code
