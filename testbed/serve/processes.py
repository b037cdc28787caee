"""Starts runs as `python -m testbed.run`, and tells runs to end.

Each run has a session of its own and its output in a file, so that it lives on when the server ends,
whatever way that is. Who carries a run out stands in its directory (`testbed.carriers`), so that a server
finds the runs of its predecessor, and those of a terminal, and can tell them to end as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed import carriers, step_summary
from testbed.carriers import Carrier
from testbed.errors import Problem, ScenarioError
from testbed.rundir import RunDir
from testbed.serve import contained
from testbed.serve.guard import TOKEN_VARIABLE

OUTPUT: Final = "started"
"""Directory below the runs with the output of what was started, a file each."""
SAID_BYTES: Final = 8192
MOST_AT_ONCE: Final = 4
MOST_STARTS: Final = 1_000_000
WITHHELD: Final = (step_summary.VARIABLE, TOKEN_VARIABLE)
"""Of the environment: who runs a scenario's programs need not know the token."""


@dataclass
class Start:
    """One start, and what has become of it so far."""

    process: subprocess.Popen[bytes]
    carrier: Carrier | None
    output: Path
    run: str | None = None
    """Its directory, once it has one."""
    exit_code: int | None = None

    def said(self) -> str:
        """The end of what it has printed."""
        try:
            with self.output.open("rb") as file:
                file.seek(max(0, self.output.stat().st_size - SAID_BYTES))
                return file.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""


class Processes:
    """The runs that this server has started, and all that are under way below `runs`."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._starts: dict[int, Start] = {}
        self._told: set[Carrier] = set()
        self._lock = threading.Lock()

    def start(self, scenario: Path, options: list[str]) -> int:
        """Start a run of this file; returns the number of the start.

        Raises ScenarioError when as many run as may, or it cannot be started.
        """
        command = [
            sys.executable,
            "-m",
            "testbed.run",
            "--out",
            str(self._runs),
            *options,
            "--",
            str(scenario),
        ]
        with self._lock:
            running = sum(one.process.poll() is None for one in self._starts.values())
            if running >= MOST_AT_ONCE:
                found = f"{running} runs that were started here are under way"
                raise ScenarioError(Problem("runs", found, f"{MOST_AT_ONCE} at once", "stop one, or wait"))
            try:
                number, output = self._new_output()
                process = _spawn(command, output)
            except OSError as error:
                raise ScenarioError(Problem("runs", f"cannot be started: {error}")) from None
            self._starts[number] = Start(process, carriers.of_process(process.pid), output)
        return number

    def get(self, number: int) -> Start | None:
        """A start of this server, as it stands now; None: there is none with this number."""
        with self._lock:
            start = self._starts.get(number)
            if start is not None:
                start.exit_code = start.process.poll()
                if start.run is not None and contained.run_directory(self._runs, start.run) is None:
                    start.run = None  # a run whose kernel cannot start takes its directory away
                if start.run is None and start.carrier is not None:
                    start.run = self._directory_of(start.carrier)
        return start

    def stop(self, run: str) -> bool:
        """Tell a run to end and to judge what it has: SIGINT, and SIGTERM when it was told before.

        False when nobody carries it out any more, or it is judged: its process may be at another run by now.
        """
        directory = RunDir(self._runs / run)
        carrier = carriers.of_run(directory)
        if carrier is None or directory.verdict.exists():
            return False
        with self._lock:
            wanted = signal.SIGTERM if carrier in self._told else signal.SIGINT
            self._told = {one for one in self._told if one.alive} | {carrier}
        return carrier.send(wanted)

    def _directory_of(self, carrier: Carrier) -> str | None:
        """The directory that this process carries out a run in: the latest, or else any."""
        with suppress(OSError):
            latest = (self._runs / "latest").readlink().name
            if self._is_of(latest, carrier):
                return latest
        with suppress(OSError), os.scandir(self._runs) as entries:
            return next((entry.name for entry in entries if self._is_of(entry.name, carrier)), None)
        return None

    def _is_of(self, name: str, carrier: Carrier) -> bool:
        directory = contained.run_directory(self._runs, name)
        noted = None if directory is None else carriers.of_run(RunDir(directory))
        return noted is not None and noted.same_process(carrier)

    def _new_output(self) -> tuple[int, Path]:
        directory = self._runs / OUTPUT
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(sum(1 for _ in directory.iterdir()) + 1, MOST_STARTS):
            path = directory / f"{number}.log"
            with suppress(FileExistsError):
                path.touch(exist_ok=False)
                return number, path
        raise OSError(f"{directory} is full")


def environment() -> dict[str, str]:
    """What a process that runs the code of a scenario may see of the server's."""
    return {name: value for name, value in os.environ.items() if name not in WITHHELD}


def _spawn(command: list[str], output: Path) -> subprocess.Popen[bytes]:
    """Start it by way of `env`, for a server that was told to ignore SIGINT would hand that on."""
    with output.open("wb") as file:
        return subprocess.Popen(
            ["env", "--default-signal=INT", *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
