"""Runs of scenarios as a user would start them, a few at a time, and what they left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec
import polars as pl

from testbed import record
from testbed.errors import Problem, RunError
from testbed.rundir import RunDir
from testbed.verdict import Verdict

POLL_S: Final = 0.1


class Wanted(msgspec.Struct, frozen=True):
    """One run: the scenario's file and what `--set` changes in it."""

    name: str
    scenario: Path
    overrides: tuple[str, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """Its verdict, its tables, and where it is."""

    name: str
    directory: Path
    verdict: Verdict
    tables: dict[str, pl.DataFrame]


def run_all(wanted: Sequence[Wanted], out: Path, jobs: int) -> Generator[Done, None, None]:
    """Run them, `jobs` at a time, into directories of their own below `out`; yields them in their order.

    However it is left, by Ctrl-C too, nothing is started any more, and what still ran has been told to end
    and has ended.

    Raises:
        RunError: one left nothing to look at; what it said is in the message.
    """
    children = _Children()
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures: list[Future[Done]] = []
        try:
            futures += (pool.submit(_run, one, out / one.name, children) for one in wanted)
            for future in futures:
                _wait(future)
                yield future.result()
        finally:
            _end(pool, children, futures)


def newest(wanted: Sequence[Wanted], out: Path) -> Generator[Done, None, None]:
    """What `run_all` left below `out` the last time; yields them in their order.

    Raises:
        RunError: one is not there, or was made by another version.
    """
    for one in wanted:
        latest = RunDir((out / one.name / "latest").resolve())
        if not latest.verdict.is_file():
            problem = Problem(str(out / one.name / "latest"), "holds no run", next_step="run without --again")
            raise RunError(problem)
        yield _done(one, latest)


class _Children:
    """The commands that run now. Only threads start them, where no signal can come between start and note."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run it to its end; RunError after `stop`.

        It gets a process group of its own: a Ctrl-C reaches it through `stop` alone, as a second signal would
        cut off the verdict that it makes after the first.
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


def _wait(*futures: Future[Done]) -> None:
    """Until they are done. Polars handles SIGINT so that the wait for a lock goes on: none may be long."""
    while not all(future.done() for future in futures):
        wait(futures, timeout=POLL_S)


def _end(pool: ThreadPoolExecutor, children: _Children, futures: Sequence[Future[Done]]) -> None:
    """End all that runs; whoever presses Ctrl-C again tells it to end once more."""
    while True:
        try:
            children.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            _wait(*futures)
        except KeyboardInterrupt:
            continue
        return


def _command(wanted: Wanted, out: Path) -> list[str]:
    options = [option for override in wanted.overrides for option in ("--set", override)]
    start = [sys.executable, "-m", "testbed.run"]
    return [*start, str(wanted.scenario), "--quiet", "--out", str(out), *options]


def _run(wanted: Wanted, out: Path, children: _Children) -> Done:
    before = set(out.glob("*")) if out.exists() else set()
    ended = children.run(_command(wanted, out))
    made = [path for path in out.glob("*") if path not in before and not path.is_symlink()]
    if len(made) != 1 or not RunDir(made[0]).verdict.is_file():
        said = (ended.stderr or ended.stdout).strip()
        raise RunError(
            Problem(str(wanted.scenario), f"left no verdict (exit code {ended.returncode}): {said}")
        )
    return _done(wanted, RunDir(made[0]))


def _done(wanted: Wanted, run: RunDir) -> Done:
    return Done(wanted.name, run.path, Verdict.read(run.verdict), record.load(run))
