"""Agents in OCI containers (crun), each in the network namespace of its topology host.

The root file system is this machine's, read-only; an agent can write to its journal and nowhere else.
Ready is a line on stdout. Specification: OCI runtime-spec 1.0, config.json.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from testbed import namespaces
from testbed.errors import AgentError, Problem
from testbed.mounts import bind, usual

PROJECT = Path(__file__).resolve().parents[1]
READY_TIMEOUT_S = 120
LAST_WORDS = 20
_STEP_S, _PATIENCE_STEPS = 0.01, 100
_PIDS_MAX = 256
_FILES_MAX = 65_536
_CAPABILITIES = ["CAP_DAC_OVERRIDE"]
"""The run directory belongs to whoever started the run; an agent must write its journal there."""


@dataclass(frozen=True)
class Recipe:
    """What an agent is started from, every time."""

    name: str
    role: str
    host: str
    memory_bytes: int
    config: bytes
    shares: str = ""
    """The directory in memory that it shares with all agents that say the same; empty: none."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Container:
    """A running agent: its crun process and what it has said so far."""

    recipe: Recipe
    process: asyncio.subprocess.Process
    pid_file: Path
    said: list[str] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    expected_dead: bool = False
    """Somebody killed it on purpose."""

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def pid(self) -> int:
        """Of the agent itself, as this process sees it."""
        return int(self.pid_file.read_text(encoding="ascii"))

    def tell(self, line: str) -> None:
        """Write one line to the agent's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")


class Containers:
    """All agents of a run; `directory` holds bundles and configurations, `journal` is theirs to write.

    What agents share has room for `shared_bytes`, and is gone with this process.
    """

    def __init__(self, directory: Path, journal: Path, shared_bytes: int = 0) -> None:
        self._directory, self._journal = directory, journal
        self._root = directory / "root"
        self._gpus = gpus()
        self._running: dict[str, Container] = {}
        self._followers: set[asyncio.Task[None]] = set()
        self._dead: list[Container] = []
        """Those whose death nobody wanted."""
        self._died = asyncio.Event()
        self._root.mkdir(parents=True)
        (directory / "agents").mkdir()
        subprocess.run(["mount", "--bind", "/", str(self._root)], check=True)
        self._shared = directory / "shared"
        if shared_bytes:
            self._shared.mkdir()
            how = f"size={shared_bytes},nodev,nosuid,noexec,mode=700"
            subprocess.run(["mount", "-t", "tmpfs", "-o", how, "tmpfs", str(self._shared)], check=True)

    def running(self, name: str) -> Container:
        """The agent of that name, as it was started last."""
        return self._running[name]

    async def start(self, recipe: Recipe) -> Container:
        """Start `python -m agents <role>` with the recipe's `config` as its configuration file."""
        name = recipe.name
        (self._directory / "agents" / f"{name}.json").write_bytes(recipe.config)
        bundle = self._directory / "bundles" / name
        bundle.mkdir(parents=True, exist_ok=True)
        if recipe.shares:
            (self._shared / recipe.shares).mkdir(exist_ok=True)
        (bundle / "config.json").write_bytes(msgspec.json.encode(self._specification(recipe)))
        pid_file = bundle / "pid"
        process = await asyncio.create_subprocess_exec(
            "crun",
            f"--root={self._directory / 'crun'}",
            "--cgroup-manager=cgroupfs",
            "run",
            f"--bundle={bundle}",
            f"--pid-file={pid_file}",
            f"{namespaces.label()}-{name}",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        container = Container(recipe, process, pid_file)
        self._running[name] = container
        follower = asyncio.create_task(self._follow(container))
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        return container

    async def kill(self, name: str) -> int:
        """End an agent on purpose and wait until its container is gone; returns its exit status.

        AgentError when it has died of something else before.
        """
        container = self._running[name]
        try:
            os.kill(container.pid, signal.SIGKILL)
        except ProcessLookupError:
            raise await self.death() from None
        container.expected_dead = True
        return await container.process.wait()

    async def restart(self, name: str) -> Container:
        """Start an agent that was killed again, as it was started before, and wait until it serves."""
        container = self._running[name]
        assert container.expected_dead
        container.pid_file.unlink()
        again = await self.start(container.recipe)
        await self.all_ready([again])
        return again

    async def _follow(self, container: Container) -> None:
        """Listen to an agent to its end, and note an end that nobody wanted; one that is done may go."""
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
        status = await container.process.wait()
        if not container.expected_dead and (status or not container.done.is_set()):
            self._dead.append(container)
            self._died.set()

    async def all_ready(self, containers: list[Container]) -> None:
        """Wait until each has said that it serves; AgentError when one dies or stays silent."""
        for container in containers:
            await self._unless_dead(container.ready, READY_TIMEOUT_S, "become ready")

    async def done(self, container: Container, timeout_s: float) -> None:
        """Wait until one has done its work; AgentError when any dies, or it takes longer than that."""
        await self._unless_dead(container.done, timeout_s, "finish")

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
        """Wait until an agent dies that should not; returns the error that says which and why."""
        await self._died.wait()
        dead = sorted(self._dead, key=lambda one: one.name)
        return AgentError(*(_obituary(one) for one in dead))

    async def close(self) -> None:
        """Kill all agents, frozen ones too, and wait until their containers are gone."""
        await asyncio.gather(*(_put_away(container) for container in self._running.values()))

    def _specification(self, recipe: Recipe) -> dict[str, Any]:
        name = recipe.name
        files = min(_FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return {
            "ociVersion": "1.0.0",
            "hostname": name,
            "root": {"path": str(self._root), "readonly": True},
            "process": {
                "args": [sys.executable, "-S", "-m", "agents", recipe.role, f"/run/agents/{name}.json"],
                "cwd": str(PROJECT),
                "env": [
                    "PATH=/usr/bin:/bin",
                    "LANG=C.UTF-8",
                    "PYTHONHASHSEED=0",
                    "PYTHONDONTWRITEBYTECODE=1",
                    *(f"{name}={value}" for name, value in sorted(recipe.environment.items())),
                    f"PYTHONPATH={PROJECT}:{sysconfig.get_path('purelib')}",
                ],
                "user": {"uid": 0, "gid": 0},
                "noNewPrivileges": True,
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
                "rlimits": [{"type": "RLIMIT_NOFILE", "hard": files, "soft": files}],
            },
            "mounts": self._mounts(recipe.shares),
            "linux": {
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")),
                    {"type": "network", "path": str(namespaces.NETNS_DIR / recipe.host)},
                ],
                "cgroupsPath": f"/{namespaces.label()}/{name}",
                "resources": {
                    "memory": {"limit": recipe.memory_bytes},
                    "pids": {"limit": _PIDS_MAX},
                    **({"devices": [{"allow": True, "access": "rwm"}]} if self._gpus else {}),
                },
            },
        }

    def _mounts(self, shares: str) -> list[dict[str, Any]]:
        return [
            *usual(),
            bind(PROJECT, str(PROJECT), "ro"),
            bind(self._directory / "agents", "/run/agents", "ro"),
            bind(self._journal, CONTAINER_JOURNAL, "rw"),
            *([bind(self._shared / shares, CONTAINER_SHARED, "rw", "nodev", "noexec")] if shares else []),
            *(bind(device, str(device), "rw") for device in self._gpus),
        ]


CONTAINER_JOURNAL, CONTAINER_SHARED = "/run/journal", "/run/kv"


def gpus(dev: Path = Path("/dev")) -> list[Path]:
    """The nodes of NVIDIA's driver that can be opened: a guest sees the host's, but has no driver."""
    return [node for node in sorted(dev.glob("nvidia*")) if _opens(node)]


def _opens(node: Path) -> bool:
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError:
        return False
    return True


async def _put_away(container: Container) -> None:
    """Kill it, as soon as it has come up far enough to have a process id."""
    container.expected_dead = True
    for _ in range(_PATIENCE_STEPS):
        if container.process.returncode is not None:
            return
        try:
            os.kill(container.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        except (OSError, ValueError):  # crun has not written the file, or not to its end
            await asyncio.sleep(_STEP_S)
        else:
            break
    else:
        container.process.kill()
    await container.process.wait()


def _obituary(container: Container) -> Problem:
    last = " | ".join(container.said[-5:]) or "nothing"
    return Problem(
        f"agent {container.name}", f"died with status {container.process.returncode}; it said: {last}"
    )
