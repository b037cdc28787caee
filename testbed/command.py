"""A command line ends with this project's exit codes and without a traceback, whatever the user does."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Final

import typer
from rich.console import Console

from testbed.errors import Problem, RunError, ScenarioError, TestbedError

TYPER_INTERRUPTED: Final = 130
"""What typer makes of a KeyboardInterrupt; no command here ends with it by itself."""


PLAIN: Final = ("CI", "NO_COLOR")
"""With one of these set, output has no control characters, whatever it goes to."""


def terminal() -> Console:
    """Standard output: with colours and bars on a terminal, unless the environment wants neither."""
    plain = any(os.environ.get(name) for name in PLAIN) or os.environ.get("TERM") == "dumb"
    return Console(force_terminal=False) if plain else Console()


def run_command(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run `app` on these arguments (those of the program when None); returns the exit code.

    Wrong arguments end with 3, not with typer's 2, which means UNKNOWN here. Ctrl-C, a signal to end, a full
    disk and a closed pipe end with 2: whatever was asked, it was not answered. So does a fault of ours, with
    its traceback; Python's own 1 would say FAIL.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, _interrupt)
    atexit.register(gc.freeze)  # else Python looks for cycles in all that was loaded, 0.3 s, before it ends
    try:
        exit_code = app(args=arguments, standalone_mode=False) or 0
    except typer.TyperException as error:
        problem = Problem("arguments", str(error), next_step="see --help")
        print(problem, file=sys.stderr)
        return ScenarioError.exit_code
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        exit_code = TYPER_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; keep the interpreter from complaining about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RunError.exit_code
    except _machine_errors() as error:
        problem = Problem("this machine", str(error) or type(error).__name__)
        print(problem, file=sys.stderr)
        return RunError.exit_code
    except Exception:  # noqa: BLE001 - see above
        traceback.print_exc()
        exit_code = RunError.exit_code
    if exit_code == TYPER_INTERRUPTED:
        print("interrupted", file=sys.stderr)
        return RunError.exit_code
    return exit_code


def _machine_errors() -> tuple[type[Exception], ...]:
    """What a full disk raises. Asked for only when something is raised: polars takes 0.2 s to load."""
    from polars.exceptions import PolarsError  # noqa: PLC0415 - see above

    return OSError, PolarsError


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Being told to end is like Ctrl-C: the guest ends, and what was recorded is judged."""
    raise KeyboardInterrupt
