"""Agents in OCI containers (crun), each in the network namespace of its topology host.

The root file system is this machine's, read-only; an agent can write to its journal and nowhere else.
Ready is a line on stdout. Specification: OCI runtime-spec 1.0, config.json.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from testbed import namespaces
from testbed.errors import AgentError, Problem

PROJECT = Path(__file__).resolve().parents[1]
READY_TIMEOUT_S = 120
LAST_WORDS = 20
_PIDS_MAX = 256
_FILES_MAX = 65_536
_CAPABILITIES = ["CAP_DAC_OVERRIDE"]
"""The run directory belongs to whoever started the run; an agent must write its journal there."""


@dataclass
class Container:
    """A running agent: its crun process and what it has said so far."""

    name: str
    process: asyncio.subprocess.Process
    pid_file: Path
    said: list[str] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    follower: asyncio.Task[None] | None = None

    def tell(self, line: str) -> None:
        """Write one line to the agent's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")


class Containers:
    """All agents of a run; `directory` holds bundles and configurations, `journal` is theirs to write."""

    def __init__(self, directory: Path, journal: Path) -> None:
        self._directory, self._journal = directory, journal
        self._root = directory / "root"
        self._running: dict[str, Container] = {}
        self._root.mkdir(parents=True)
        (directory / "agents").mkdir()
        subprocess.run(["mount", "--bind", "/", str(self._root)], check=True)

    async def start(self, name: str, role: str, host: str, memory_bytes: int, config: bytes) -> Container:
        """Start `python -m agents <role>` with `config` as its configuration file."""
        (self._directory / "agents" / f"{name}.json").write_bytes(config)
        bundle = self._directory / "bundles" / name
        bundle.mkdir(parents=True)
        specification = self._specification(name, role, host, memory_bytes)
        (bundle / "config.json").write_bytes(msgspec.json.encode(specification))
        pid_file = bundle / "pid"
        process = await asyncio.create_subprocess_exec(
            "crun",
            f"--root={self._directory / 'crun'}",
            "--cgroup-manager=cgroupfs",
            "run",
            f"--bundle={bundle}",
            f"--pid-file={pid_file}",
            f"testbed-{os.getpid()}-{name}",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        container = Container(name, process, pid_file)
        self._running[name] = container
        container.follower = asyncio.create_task(self._follow(container))
        return container

    async def _follow(self, container: Container) -> None:
        assert container.process.stdout is not None
        async for raw in container.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line == "ready":
                container.ready.set()
            elif line == "done":
                container.done.set()
            else:
                container.said = [*container.said[-LAST_WORDS + 1 :], line]
                print(f"{container.name}: {line}", flush=True)

    async def all_ready(self, containers: list[Container]) -> None:
        """Wait until each has said that it serves; AgentError when one dies or stays silent."""
        for container in containers:
            await self._unless_dead(container.ready, READY_TIMEOUT_S, "become ready")

    async def _unless_dead(self, event: asyncio.Event, timeout_s: float, what: str) -> None:
        """Wait for an agent's word, while none of them dies."""
        waiting = asyncio.create_task(event.wait())
        deaths = asyncio.create_task(self.death())
        done, pending = await asyncio.wait(
            {waiting, deaths}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in pending:
            task.cancel()
        if waiting in done:
            return
        if deaths in done:
            raise deaths.result()
        silent = ", ".join(name for name, one in self._running.items() if not one.ready.is_set())
        raise AgentError(Problem(silent or "agents", f"did not {what} within {timeout_s:g} s"))

    async def death(self) -> AgentError:
        """Wait until an agent dies; returns the error that says which and why. One that is done may go."""
        waits = {
            asyncio.create_task(container.process.wait()): container for container in self._running.values()
        }
        try:
            while True:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                gone = sorted((waits.pop(task) for task in done), key=lambda one: one.name)
                for one in gone:
                    if one.follower is not None:
                        await one.follower  # it may have said at the very end that it was done
                dead = [one for one in gone if one.process.returncode or not one.done.is_set()]
                if dead:
                    return AgentError(*(_obituary(one) for one in dead))
        finally:
            for task in waits:
                task.cancel()

    async def close(self) -> None:
        """Kill all agents and wait until their containers are gone."""
        for container in self._running.values():
            with suppress(OSError, ValueError):
                os.kill(int(container.pid_file.read_text()), 9)
        for container in self._running.values():
            await container.process.wait()

    def _specification(self, name: str, role: str, host: str, memory_bytes: int) -> dict[str, Any]:
        return {
            "ociVersion": "1.0.0",
            "hostname": name,
            "root": {"path": str(self._root), "readonly": True},
            "process": {
                "args": [sys.executable, "-S", "-m", "agents", role, f"/run/agents/{name}.json"],
                "cwd": str(PROJECT),
                "env": [
                    "PATH=/usr/bin:/bin",
                    "LANG=C.UTF-8",
                    "PYTHONHASHSEED=0",
                    "PYTHONDONTWRITEBYTECODE=1",
                    f"PYTHONPATH={PROJECT}:{sysconfig.get_path('purelib')}",
                ],
                "user": {"uid": 0, "gid": 0},
                "noNewPrivileges": True,
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": _FILES_MAX, "soft": _FILES_MAX}],
            },
            "mounts": self._mounts(),
            "linux": {
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")),
                    {"type": "network", "path": str(namespaces.NETNS_DIR / host)},
                ],
                "cgroupsPath": f"/testbed-{os.getpid()}/{name}",
                "resources": {
                    "memory": {"limit": memory_bytes},
                    "pids": {"limit": _PIDS_MAX},
                },
            },
        }

    def _mounts(self) -> list[dict[str, Any]]:
        def bind(source: Path, target: str, *options: str) -> dict[str, Any]:
            return {
                "destination": target,
                "source": str(source),
                "type": "bind",
                "options": ["rbind", *options],
            }

        def memory(target: str, mode: str, *options: str) -> dict[str, Any]:
            return {
                "destination": target,
                "source": "tmpfs",
                "type": "tmpfs",
                "options": ["nosuid", f"mode={mode}", *options],
            }

        return [
            {"destination": "/proc", "source": "proc", "type": "proc"},
            memory("/dev", "755"),
            memory("/dev/shm", "1777", "nodev"),  # noqa: S108 - in the container
            memory("/tmp", "1777", "nodev"),  # noqa: S108 - in the container
            memory("/run", "755", "nodev"),
            bind(PROJECT, str(PROJECT), "ro"),
            bind(self._directory / "agents", "/run/agents", "ro"),
            bind(self._journal, "/run/journal", "rw"),
        ]


CONTAINER_JOURNAL = "/run/journal"


def _obituary(container: Container) -> Problem:
    last = " | ".join(container.said[-5:]) or "nothing"
    return Problem(
        f"agent {container.name}", f"died with status {container.process.returncode}; it said: {last}"
    )
