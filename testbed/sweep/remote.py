"""Runs on a Ray cluster: the one that RAY_ADDRESS names, or that runs here, or a new one of this machine.

A task gets a plan and gives back files, all as bytes; in it a run is a process of its own, as everywhere.
Workers need the same version of project, kernel and packages (`make setup`), and no root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from testbed.errors import MachineError, Problem, RunError
from testbed.kernel.image import PROJECT
from testbed.kernel.scratch import scratch
from testbed.rundir import RunDir
from testbed.runs import Ended, Wanted, verdict_in
from testbed.sweep import environment
from testbed.sweep.cache import LEFT_OUT
from testbed.sweep.environment import Environment
from testbed.sweep.point import Resolved, start_command

POLL_S: Final = 0.1
Files = dict[str, bytes]
"""By their path in the run directory."""


class Cluster:
    """A connection to Ray; `with` ends it."""

    def __init__(self, jobs: int | None) -> None:
        """Connect, at most `jobs` runs at a time, by default one for each processor of the cluster.

        Raises MachineError when Ray is not installed, RunError when it cannot be reached.
        """
        if find_spec("ray") is None:
            next_step = "python -m pip install -r requirements-ray.txt, or --engine local"
            raise MachineError(Problem("--engine ray", "ray is not installed", next_step=next_step))
        self._ray: Any = import_module("ray")
        self._here = environment.here()
        try:
            self._ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": {"PYTHONPATH": _python_path()}},
            )
            processors = int(self._ray.cluster_resources().get("CPU", 1))
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunError(
                Problem("--engine ray", f"no cluster: {error}", next_step="see RAY_ADDRESS")
            ) from None
        self.jobs = jobs or max(processors, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def run_all(self, wanted: Sequence[Wanted], out: Path) -> Generator[Ended, None, None]:
        """As `runs.run_all`; what still runs when it is left is told to end."""
        task = self._ray.remote(max_retries=0)(_run_there)
        waiting = [one for one in wanted if isinstance(one, Resolved)]
        running: dict[Any, Resolved] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    one = waiting.pop(0)
                    running[task.remote(*_sent(one), self._here)] = one
                done, _ = self._ray.wait(list(running), timeout=POLL_S)
                for future in done:
                    yield self._landed(running.pop(future), future, out)
        finally:
            for future in running:
                self._ray.cancel(future)

    def _landed(self, one: Resolved, future: Any, out: Path) -> Ended:
        """What came back, as files again."""
        try:
            exit_code, said, files = self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            exit_code, said, files = -1, f"the worker failed: {error}", {}
        directory = out / one.name / "run" if files else None
        for name, content in files.items():
            path = out / one.name / "run" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return Ended(one, directory, verdict_in(directory), exit_code, said)


def _sent(one: Resolved) -> tuple[bytes, bytes, list[str]]:
    given = RunDir(one.place)
    return given.plan.read_bytes(), given.scenario.read_bytes(), one.arguments


def _python_path() -> str:
    """Where workers of this machine find the project; on others it has to be installed."""
    others = os.environ.get("PYTHONPATH", "")
    return f"{PROJECT}{os.pathsep}{others}" if others else str(PROJECT)


def _run_there(
    plan: bytes, scenario: bytes, arguments: list[str], wanted: Environment
) -> tuple[int, str, Files]:
    """On a worker: exit code, what was said, and what the run left."""
    if differs := environment.differences(wanted, environment.here()):
        said = f"the worker has another version (asked for, found there): {'; '.join(differs)}"
        return MachineError.exit_code, said, {}
    with scratch("worker") as (directory,):
        place, out = RunDir(directory / "given"), directory / "out"
        place.path.mkdir()
        place.plan.write_bytes(plan)
        place.scenario.write_bytes(scenario)
        ended = subprocess.run(
            start_command(place.path, out, arguments), capture_output=True, text=True, check=False
        )
        made = [path for path in out.glob("*") if not path.is_symlink()]
        said = (ended.stderr or ended.stdout).strip()
        return ended.returncode, said, _files(made[0]) if made else {}


def _files(run: Path) -> Files:
    """All that is worth its way."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.relative_to(run).parts[0] not in LEFT_OUT
    }
