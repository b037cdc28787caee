"""A command line ends with this project's exit codes and without a traceback, whatever the user does."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal

import typer
from rich.console import Console

from testbed.errors import Problem, RunError, ScenarioError, TestbedError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TYPER_INTERRUPTED: Final = 130
"""What typer makes of a KeyboardInterrupt; no command here ends with it by itself."""

PLAIN: Final = ("CI", "NO_COLOR")
"""With one of these set, output has no control characters, whatever it goes to."""
NOBODY_READS: Final = (errno.EPIPE, errno.EIO)
"""The other end of a pipe is closed, or the terminal is."""


def terminal() -> Console:
    """Standard output: with colours and bars on a terminal, unless the environment wants neither."""
    plain = any(os.environ.get(name) for name in PLAIN) or os.environ.get("TERM") == "dumb"
    return Console(force_terminal=False) if plain else Console()


class _Output(io.FileIO):
    """Standard output or error that may fail under a command: the rest is lost, and `failed` says why."""

    failed: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        if self.failed is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failed = error
        return memoryview(data).nbytes


def run_command(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run `app` on these arguments (those of the program when None); returns the exit code.

    Wrong arguments end with 3, not with typer's 2, which means UNKNOWN here. Ctrl-C, a signal to end and a
    full disk end with 2: whatever was asked, it was not answered. So does a fault of ours, with its
    traceback; Python's own 1 would say FAIL. Where nobody reads what a command says any more, because of a
    closed pipe or terminal, it goes on in silence to its own end.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(ending) is not signal.SIG_IGN:
            signal.signal(ending, _interrupt)
    atexit.register(gc.freeze)  # else Python looks for cycles in all that was loaded, 0.3 s, before it ends
    outputs = [_outlive("stdout", 1), _outlive("stderr", 2)]
    exit_code = _run(app, arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for output in outputs:
        if output is not None and output.failed is not None and output.failed.errno not in NOBODY_READS:
            print(Problem("this machine", str(output.failed)), file=sys.stderr)
            return RunError.exit_code
    return exit_code


def _outlive(name: Literal["stdout", "stderr"], number: int) -> _Output | None:
    """See that writing to that stream raises nothing more; None where it is not this process's own."""
    stream = getattr(sys, name)
    if stream is None:  # it was closed before Python began
        setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - to the end
        return None
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # unbuffered, it is the raw file itself
    if not isinstance(raw, io.FileIO) or raw.fileno() != number:
        return None
    stream.flush()
    output = _Output(number, "w", closefd=False)
    lines = stream.line_buffering or stream.write_through
    buffered = io.BufferedWriter(output)
    setattr(sys, name, io.TextIOWrapper(buffered, stream.encoding, stream.errors, line_buffering=lines))
    return output


def _run(app: typer.Typer, arguments: Sequence[str] | None) -> int:
    try:
        exit_code = app(args=arguments, standalone_mode=False) or 0
    except typer.TyperException as error:
        # with the option that is wrong, and without what pydantic puts before the message of a check
        found = error.format_message().replace("Value error, ", "")
        problem = Problem("arguments", found, next_step="see --help")
        print(problem, file=sys.stderr)
        return ScenarioError.exit_code
    except TestbedError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        exit_code = TYPER_INTERRUPTED
    except SystemExit:  # typer's answer to any other pipe that is closed; its 1 would say FAIL
        traceback.print_exc()
        exit_code = RunError.exit_code
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


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """Being told to end is like Ctrl-C: the guest ends, and what was recorded is judged."""
    if number == signal.SIGHUP:  # a terminal that is closed says so once itself, and once by its shell
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
