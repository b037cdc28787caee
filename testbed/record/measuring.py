"""Runs `python -m agents measure`, where torch is loaded, and reads what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agents.config import COMPUTE_ENVIRONMENT
from agents.measurements import EXIT_MACHINE, Began, Kv, Line, Wanted
from testbed.errors import MachineError, Problem, RunError

WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--")
"""When this process is killed outright, the kernel kills the other."""
LINES = msgspec.json.Decoder(Line)


def lines(wanted: Wanted, console: Console) -> Iterator[Line]:
    """All lines, with a bar meanwhile where `console` is a terminal; however it is left, the program ends.

    Raises:
        MachineError: the machine lacks the device, or memory.
        RunError: the program broke off.
    """
    with TemporaryDirectory(prefix="testbed-record-") as directory:
        config, said = Path(directory) / "wanted.json", Path(directory) / "stderr"
        config.write_bytes(msgspec.json.encode(wanted))
        with (
            said.open("wb") as stderr,
            subprocess.Popen(
                [*WITH_US, sys.executable, "-m", "agents", "measure", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                process_group=0,
                env={**os.environ, **COMPUTE_ENVIRONMENT},
            ) as program,
        ):
            try:
                yield from _read(program, wanted, console)
                exit_code = program.wait()
            finally:
                program.kill()
        if exit_code:
            raise _error(exit_code, said.read_text(encoding="utf-8", errors="replace"))


def _read(program: subprocess.Popen[bytes], wanted: Wanted, console: Console) -> Iterator[Line]:
    assert program.stdout is not None
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading the model", total=wanted.timed)
        for text in program.stdout:
            line = LINES.decode(text)
            if isinstance(line, Began):
                bar.update(task, description=f"{wanted.model} on {line.device_name}")
            elif not isinstance(line, Kv):
                bar.advance(task)
            yield line


def _error(exit_code: int, said: str) -> MachineError | RunError:
    last = said.strip().rpartition("\n")[2] or f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:  # nobody else but a kernel without memory does that
        last = "the measuring process was killed: most likely there was too little memory"
    if exit_code in {EXIT_MACHINE, -signal.SIGKILL}:
        return MachineError(Problem("this machine", last, next_step="see --device, --layers, --lengths"))
    return RunError(Problem("python -m agents measure", last))
