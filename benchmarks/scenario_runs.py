"""Whole runs from the outside: `python -m testbed.run`, with the wall time of everything it says."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.machine import ROOT, processor_time

POLL_S = 0.01
HERE = Path(__file__).parent
IDLE_HOUR = HERE / "idle_hour.yaml"


class BenchmarkError(Exception):
    """What was to be measured did not work; there is no figure."""


@dataclass
class Watched:
    """A run that goes on: when (seconds since its command) it said what on the guest's console."""

    process: subprocess.Popen[str]
    out: Path
    begun_s: float = field(default_factory=time.monotonic)
    stages: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By name: wall and processor seconds at its beginning."""
    first_progress_s: float = 0.0
    ended_s: float = 0.0
    _read_bytes: int = 0

    def look(self) -> bool:
        """Take note of what is new; whether it still runs."""
        ended = self.process.poll() is not None
        now_s = time.monotonic() - self.begun_s
        console = self.out / "latest" / "console.log"
        if console.is_file():
            with console.open("rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0] + b"\n"
            if whole != b"\n":
                self._read_bytes += len(whole)
                for line in whole.decode(errors="replace").splitlines():
                    self._line(line, now_s)
        if ended:
            self.ended_s = now_s
        return not ended

    def _line(self, line: str, now_s: float) -> None:
        word, _, rest = line.partition(" ")
        if word == "@stage":
            self.stages.setdefault(rest, (now_s, processor_time(self.process.pid).total_s()))
        elif word == "@progress" and not self.first_progress_s and float(rest) > 0:
            self.first_progress_s = now_s


@dataclass(frozen=True)
class Timed:
    """A run that passed."""

    wall_s: float
    """Of the whole command."""
    processor_s: float
    first_request_s: float
    """From the command until all that is due at t0 is done: the client has sent its first request."""
    parts: dict[str, tuple[float, float]]
    """By stage: wall and processor seconds."""
    requests: int

    def values(self) -> dict[str, float]:
        """For a reading; the parts by their names, in processor seconds."""
        return {
            "wall_s": self.wall_s,
            "processor_s": self.processor_s,
            "first_request_s": self.first_request_s,
            **{name: processor_s for name, (_, processor_s) in self.parts.items()},
        }


@contextmanager
def _started(scenario: Path, arguments: tuple[str, ...]) -> Iterator[Watched]:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        out = Path(place)
        with (out / "said").open("w", encoding="utf-8") as said:
            command = [sys.executable, "-m", "testbed.run", str(scenario), "--out", place, *arguments]
            process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, text=True)
        try:
            yield Watched(process, out)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def timed(scenario: Path, *arguments: str) -> Timed:
    """Run the scenario once. Raises BenchmarkError unless its verdict is PASS."""
    before = _children_s()
    with _started(scenario, arguments) as run:
        while run.look():
            time.sleep(POLL_S)
        _demand_pass(run)
        processor_s = _children_s() - before
        return Timed(run.ended_s, processor_s, run.first_progress_s, _parts(run, processor_s), _requests(run))


def side_by_side(scenario: Path, *arguments: str) -> float:
    """Wall seconds until two runs that start together have both ended. BenchmarkError as in `timed`."""
    with _started(scenario, arguments) as one, _started(scenario, arguments) as other:
        while any([one.look(), other.look()]):
            time.sleep(POLL_S)
        _demand_pass(one)
        _demand_pass(other)
        return max(one.ended_s, other.ended_s)


def _demand_pass(run: Watched) -> None:
    if run.process.returncode:
        said = (run.out / "said").read_text(encoding="utf-8").splitlines()
        raise BenchmarkError(f"exit code {run.process.returncode} of testbed.run: {' | '.join(said[-12:])}")


def _parts(run: Watched, processor_s: float) -> dict[str, tuple[float, float]]:
    """By stage, wall and processor seconds until the next; plan and boot first, judging last."""
    names = ["plan and boot", *run.stages]
    moments = [(0.0, 0.0), *run.stages.values(), (run.ended_s, processor_s)]
    return {
        "stopping, record, verdict, report" if name == "stopping" else name: (
            until[0] - since[0],
            until[1] - since[1],
        )
        for name, since, until in zip(names, moments, moments[1:], strict=False)
    }


def _requests(run: Watched) -> int:
    return len(json.loads((run.out / "latest" / "plan.json").read_bytes())["requests"])


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
