"""Runs `python -m agents measure`, where torch is loaded, here or in a guest, and reads what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agents.config import COMPUTE_ENVIRONMENT
from agents.kv_layouts import MODELS
from agents.measurements import EXIT_MACHINE, Began, Kv, Line, Wanted
from agents.shapes import SHAPES
from testbed.errors import MachineError, Problem, RunError
from testbed.kernel import Needs
from testbed.kernel.scratch import scratch
from testbed.kernel.supervise import tied
from testbed.kernel.uml import Uml
from testbed.record import inside
from testbed.resolve.compute import model_memory_bytes

GUEST_BYTES: Final = 1 << 30
"""Of a guest, for itself."""
MOST_S: Final = 7 * 86_400.0


def lines_of_guest(wanted: Wanted, console: Console) -> list[Line]:
    """All lines, measured in a guest (User-Mode Linux) in real time, where runs with real kernels are.

    Raises:
        MachineError: the machine lacks what a guest needs, or memory.
        KernelError: the guest died.
        RunError: the program broke off.
    """
    kernel = Uml(payload=("-m", inside.__name__))
    if problems := kernel.probe("real"):
        raise MachineError(*problems)
    held_bytes = wanted.batches[-1] * MODELS[wanted.model].kv_bytes(max(*wanted.contexts, *wanted.lengths))
    needs = Needs(
        memory_bytes=GUEST_BYTES + model_memory_bytes(SHAPES[wanted.model]) + 4 * held_bytes,
        clock="real",
        seed=1,
        wall_limit_s=MOST_S,
    )
    with scratch("record") as (directory,), _bar(wanted, console) as (_, taken):
        (directory / inside.WANTED).write_bytes(msgspec.json.encode(wanted))
        kernel.execute(directory, needs, lambda line: taken() if line == inside.SAMPLE else None)
        ended = msgspec.json.decode((directory / inside.ENDED).read_bytes(), type=inside.Ended)
        if ended.exit_code:
            raise _error(ended.exit_code, ended.said)
        return [inside.LINES.decode(line) for line in (directory / inside.MEASURED).read_bytes().splitlines()]


def lines(wanted: Wanted, console: Console) -> Iterator[Line]:
    """All lines, with a bar meanwhile where `console` is a terminal; however it is left, the program ends.

    Raises:
        MachineError: the machine lacks the device, or memory.
        RunError: the program broke off.
    """
    with scratch("record") as (directory,):
        config, said = directory / "wanted.json", directory / "stderr"
        config.write_bytes(msgspec.json.encode(wanted))
        with (
            said.open("wb") as stderr,
            subprocess.Popen(
                [*tied("KILL"), sys.executable, "-m", "agents", "measure", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                process_group=0,
                env={**os.environ, **COMPUTE_ENVIRONMENT},
            ) as program,
        ):
            try:
                assert program.stdout is not None
                with _bar(wanted, console) as (found, taken):
                    for text in program.stdout:
                        line = inside.LINES.decode(text)
                        if isinstance(line, Began):
                            found(line.device_name)
                        elif not isinstance(line, Kv):
                            taken()
                        yield line
                exit_code = program.wait()
            finally:
                program.kill()
        if exit_code:
            raise _error(exit_code, said.read_text(encoding="utf-8", errors="replace"))


@contextmanager
def _bar(wanted: Wanted, console: Console) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A bar, where `console` is a terminal: to be told of the device, and of each time that was taken."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading the model", total=wanted.timed)

        def found(device: str) -> None:
            bar.update(task, description=f"{wanted.model} on {device}")

        yield found, lambda: bar.advance(task)


def _error(exit_code: int, said: str) -> MachineError | RunError:
    last = said.strip().rpartition("\n")[2] or f"ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:  # nobody else but a kernel without memory does that
        last = "the measuring process was killed: most likely there was too little memory"
    if exit_code in {EXIT_MACHINE, -signal.SIGKILL}:
        return MachineError(Problem("this machine", last, next_step="see --device, --layers, --lengths"))
    return RunError(Problem("python -m agents measure", last))
