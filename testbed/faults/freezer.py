"""Freezing a process with all that belongs to it, by its control group.

A frozen process does nothing, its sockets and timers stay. Version 2 (kernel: Documentation/admin-guide/
cgroup-v2.rst, `cgroup.freeze`): it can be killed. Version 1 (cgroup-v1/freezer-subsystem.rst,
`freezer.state`): killed, it dies when it is thawed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import AgentError, Problem

ROOT: Final = Path("/sys/fs/cgroup")
STEP_S: Final = 0.001
PATIENCE_STEPS: Final = 1000


@dataclass(frozen=True)
class _Switch:
    """The file that freezes, what is written there, and where the kernel says what has become of it."""

    file: Path
    words: tuple[str, str]
    """To thaw and to freeze."""
    events: Path
    told: tuple[str, str]
    """A line of `events` when it is thawed, and when it is frozen."""


class Freezer:
    """The control group of one agent."""

    def __init__(self, name: str, pid: int, root: Path = ROOT, processes: Path = Path("/proc")) -> None:
        """AgentError where it has no group that can be frozen, as in kernels before 5.2 without version 1."""
        self._name = name
        self._switch = _switch(processes / str(pid) / "cgroup", root, name)

    async def freeze(self) -> None:
        """Stop it; AgentError when the kernel does not say that it stands still."""
        await self._set(1)

    async def thaw(self) -> None:
        """Let it go on."""
        await self._set(0)

    def let_go(self) -> None:
        """Let it go on without a look at whether it does, for those who cannot wait; it may be dead."""
        with suppress(OSError):
            self._switch.file.write_text(self._switch.words[0], encoding="ascii")

    async def _set(self, frozen: int) -> None:
        switch = self._switch
        try:
            switch.file.write_text(switch.words[frozen], encoding="ascii")
            for _ in range(PATIENCE_STEPS):
                if switch.told[frozen] in self._events():
                    return
                await asyncio.sleep(STEP_S)
        except OSError as error:
            raise AgentError(Problem(f"agent {self._name}", f"its control group: {error.strerror}")) from None
        found = f"its control group says {' '.join(self._events())!r} after {PATIENCE_STEPS * STEP_S:g} s"
        raise AgentError(Problem(f"agent {self._name}", found, switch.told[frozen]))

    def _events(self) -> list[str]:
        return self._switch.events.read_text(encoding="ascii").splitlines()


def _switch(file: Path, root: Path, name: str) -> _Switch:
    """That of a process's group, of version 2 or of version 1."""
    groups = _groups(file)
    directory = root / groups.get("", "").lstrip("/")
    frozen = directory / "cgroup.freeze"
    if frozen.is_file():
        return _Switch(frozen, ("0", "1"), directory / "cgroup.events", ("frozen 0", "frozen 1"))
    state = root / "freezer" / groups.get("freezer", "").lstrip("/") / "freezer.state"
    if not state.is_file():
        found = f"{directory} cannot be frozen"
        allowed = "control groups of version 2, or of version 1 with its freezer"
        raise AgentError(Problem(f"agent {name}", found, allowed))
    return _Switch(state, ("THAWED", "FROZEN"), state, ("THAWED", "FROZEN"))


def _groups(file: Path) -> dict[str, str]:
    """The process's group in each hierarchy, by the names of its controllers; that of version 2 has none."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        _, controllers, group = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), group)
    return found
