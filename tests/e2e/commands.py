"""The real command line, as a user starts it, and what it leaves on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

PROJECT = Path(__file__).resolve().parents[2]
SCENARIOS = Path(__file__).with_name("scenarios")
TRACES = Path(__file__).with_name("traces")
WAIT_S = 120


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    output: str
    run: Path

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "manifest.json").read_bytes())
        return found

    @property
    def plan(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "plan.json").read_bytes())
        return found

    def table(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self.run / f"record/{name}.parquet")


def start(module: str, *arguments: str | Path, temporary: Path) -> subprocess.Popen[str]:
    """Start `python -m MODULE` in a session of its own, its temporary files in `temporary`.

    It hears SIGINT, which the processes that tests run in may have been told to ignore.
    """
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", module, *map(str, arguments)],
        cwd=PROJECT,
        env={**os.environ, "TMPDIR": str(temporary), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(out: Path, *arguments: str | Path) -> Ended:
    """`python -m testbed.run` to its end."""
    out.mkdir(exist_ok=True)
    with start("testbed.run", *arguments, "--out", out, temporary=out) as process:
        output, _ = process.communicate()
    return Ended(process.returncode, output, (out / "latest").resolve())


def call(out: Path, module: str, *arguments: str | Path) -> tuple[int, str]:
    """`python -m MODULE` to its end: its exit code and what it said."""
    with start(module, *arguments, temporary=out) as process:
        output, _ = process.communicate()
    return process.returncode, output


def until(condition: Callable[[], bool]) -> None:
    """Look again and again; TimeoutError when it does not come true."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.02)


def survivors(place: Path) -> list[str]:
    """Command lines of processes that work below `place` or name it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
            if str((process / "cwd").readlink()).startswith(str(place)) or str(place) in command:
                found.append(command)
        except OSError:
            continue
    return found


def traces_on_this_machine() -> dict[str, list[str]]:
    """What a run could leave: mounts, named network namespaces, control groups without a live owner."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    namespaces = Path("/run/netns")
    groups = [
        path
        for path in Path("/sys/fs/cgroup").rglob("testbed-*")
        if not Path("/proc", path.name.removeprefix("testbed-")).exists()  # other tests run at the same time
    ]
    return {
        "mounts": sorted(line.split(" ", 2)[2] for line in mounts),
        "namespaces": sorted(path.name for path in namespaces.iterdir()) if namespaces.is_dir() else [],
        "groups": sorted(str(path) for path in groups),
    }
