"""Freezing a process with all that belongs to it, by its control group.

Of version 2 (kernel: Documentation/admin-guide/cgroup-v2.rst, `cgroup.freeze`): a frozen process does
nothing, its sockets and timers stay, and it can be killed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from testbed.errors import AgentError, Problem

ROOT: Final = Path("/sys/fs/cgroup")
STEP_S: Final = 0.001
PATIENCE_STEPS: Final = 1000


class Freezer:
    """The control group of one agent."""

    def __init__(self, name: str, pid: int, root: Path = ROOT, processes: Path = Path("/proc")) -> None:
        """AgentError where there is no such group: version 1, or a kernel before 5.2."""
        self._name = name
        group = _group(processes / str(pid) / "cgroup")
        self._directory = root / group.lstrip("/")
        if not (self._directory / "cgroup.freeze").is_file():
            found = f"{self._directory} cannot be frozen"
            raise AgentError(Problem(f"agent {name}", found, "control groups of version 2"))

    async def freeze(self) -> None:
        """Stop it; AgentError when the kernel does not say that it stands still."""
        await self._set(1)

    async def thaw(self) -> None:
        """Let it go on."""
        await self._set(0)

    def let_go(self) -> None:
        """Let it go on without a look at whether it does, for those who cannot wait; it may be dead."""
        with suppress(OSError):
            (self._directory / "cgroup.freeze").write_text("0", encoding="ascii")

    async def _set(self, frozen: int) -> None:
        try:
            (self._directory / "cgroup.freeze").write_text(str(frozen), encoding="ascii")
            for _ in range(PATIENCE_STEPS):
                if f"frozen {frozen}" in self._events():
                    return
                await asyncio.sleep(STEP_S)
        except OSError as error:
            raise AgentError(Problem(f"agent {self._name}", f"its control group: {error.strerror}")) from None
        found = f"its control group says {' '.join(self._events())!r} after {PATIENCE_STEPS * STEP_S:g} s"
        raise AgentError(Problem(f"agent {self._name}", found, f"frozen {frozen}"))

    def _events(self) -> list[str]:
        return (self._directory / "cgroup.events").read_text(encoding="ascii").splitlines()


def _group(file: Path) -> str:
    """The process's group in the hierarchy of version 2; empty without one."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
