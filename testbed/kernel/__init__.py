"""Where a run happens. A kernel is a probe and a way to execute; it knows nothing of scenarios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from testbed.errors import Problem

Clock = Literal["virtual", "real"]


@dataclass(frozen=True)
class Needs:
    """What a run asks of its kernel."""

    memory_bytes: int
    clock: Clock
    seed: int
    wall_limit_s: float
    """The watchdog: a run that takes longer is ended."""


class Kernel(Protocol):
    """`uml`, `host`, `vm`: the same run in different places."""

    name: str

    def probe(self, clock: Clock) -> list[Problem]:
        """Everything this machine lacks to execute here; empty when it can."""

    def execute(self, run_dir: Path, needs: Needs, on_line: Callable[[str], None]) -> None:
        """Run `python -m testbed.inside <run_dir>` here until it ends; `on_line` sees its output as it comes.

        Raises KernelError when the guest died, panicked or outlived its watchdog. How the run itself
        went is in the run directory (`outcome.json`).
        """
