"""Runs of scenarios as a user would start them, a few at a time, and what became of each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Final

import msgspec

from testbed import step_summary
from testbed.errors import Problem, RunError
from testbed.rundir import RunDir
from testbed.verdict import Verdict

POLL_S: Final = 0.1


class Wanted(msgspec.Struct, frozen=True):
    """One run: the scenario's file, and what `--seed` and `--set` change in it."""

    name: str
    """Its directory, of which no other run has the same."""
    scenario: Path
    overrides: tuple[str, ...] = ()
    seed: int | None = None
    report: bool = True
    options: tuple[str, ...] = ()
    """More of the command line, such as `--kernel uml`."""

    @property
    def arguments(self) -> list[str]:
        """For `python -m testbed.run`: what makes the record what it is."""
        seed = [] if self.seed is None else ["--seed", str(self.seed)]
        return [
            str(self.scenario),
            *self.options,
            *seed,
            *(part for one in self.overrides for part in ("--set", one)),
        ]

    def start_command(self, out: Path) -> list[str]:
        """What runs it, into a directory of its own below `out`."""
        report = [] if self.report else ["--no-report"]
        return [
            sys.executable, "-m", "testbed.run", "--quiet", "--out", str(out), *report, *self.arguments
        ]  # fmt: skip


class Ended(msgspec.Struct, frozen=True):
    """What became of it."""

    wanted: Wanted
    directory: Path | None
    """None if it made none."""
    verdict: Verdict | None
    exit_code: int
    said: str

    @property
    def left_nothing(self) -> str:
        """Why there is no verdict, in words."""
        return f"left no verdict (exit code {self.exit_code}): {self.said}"


def run_all(wanted: Sequence[Wanted], out: Path, jobs: int) -> Generator[Ended, None, None]:
    """Run them, `jobs` at a time, into directories of their own below `out`; yields each when it ends.

    However it is left, by Ctrl-C too, nothing is started any more, and what still ran has been told to end
    and has ended.
    """
    children = _Children()
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures: list[Future[Ended]] = []
        done: SimpleQueue[Future[Ended]] = SimpleQueue()
        try:
            for one in wanted:
                futures.append(pool.submit(_run, one, out / one.name, children))
                futures[-1].add_done_callback(done.put)
            for _ in futures:
                yield _next(done).result()
        finally:
            _end(pool, children, futures)


class _Children:
    """The commands that run now. Only threads start them, where no signal can come between start and note."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run it to its end; RunError after `stop`.

        It gets a process group of its own: a Ctrl-C reaches it through `stop` alone, as a second signal would
        cut off the verdict that it makes after the first. It appends to no CI summary: that is the caller's.
        """
        with self._lock:
            if self._stopped:
                raise RunError(Problem(" ".join(command), "not started any more"))
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={name: value for name, value in os.environ.items() if name != step_summary.VARIABLE},
                process_group=0,
            )
            self._running.add(child)
        out, err = child.communicate()
        with self._lock:
            self._running.remove(child)
        return subprocess.CompletedProcess(command, child.returncode, out, err)

    def stop(self) -> None:
        """Start no more, and tell those that run to end."""
        with self._lock:
            self._stopped = True
            for child in self._running:
                child.terminate()


def _next(done: SimpleQueue[Future[Ended]]) -> Future[Ended]:
    """The next that ends. Polars handles SIGINT so that the wait for a lock goes on: none may be long."""
    while True:
        with suppress(Empty):
            return done.get(timeout=POLL_S)


def _end(pool: ThreadPoolExecutor, children: _Children, futures: Sequence[Future[Ended]]) -> None:
    """End all that runs; whoever presses Ctrl-C again tells it to end once more."""
    while True:
        try:
            children.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):
                wait(futures, timeout=POLL_S)
        except KeyboardInterrupt:
            continue
        return


def _run(wanted: Wanted, out: Path, children: _Children) -> Ended:
    before = set(out.glob("*")) if out.exists() else set()
    ended = children.run(wanted.start_command(out))
    made = [path for path in out.glob("*") if path not in before and not path.is_symlink()]
    directory = made[0] if len(made) == 1 else None
    said = (ended.stderr or ended.stdout).strip()
    return Ended(wanted, directory, verdict_in(directory), ended.returncode, said)


def verdict_in(directory: Path | None) -> Verdict | None:
    """What it was judged to be; None when it was not, or that was cut short."""
    if directory is not None:
        with suppress(OSError, msgspec.DecodeError):
            return Verdict.read(RunDir(directory).verdict)
    return None
