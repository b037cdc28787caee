"""What the terminal shows while a run goes on: stages, then a bar in virtual time with the speed factor."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from testbed.plan import Plan


class Progress:
    """Reads what `inside` prints, line by line; without a terminal, or `quiet`, it draws no bar."""

    def __init__(self, plan: Plan, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._duration_s = plan.duration_ns / 1e9
        self._started = time.monotonic()
        self._running_since = 0.0
        self._bar: Bar | None = None
        if console.is_terminal and not quiet:
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f} of {task.total:.0f} virtual s   {task.fields[speed]}"),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("booting", total=self._duration_s, speed="")
        if not quiet:
            console.print(
                f"{plan.name}  seed {plan.seed}  scale {plan.scale:g}", highlight=False, style="bold"
            )
            console.print(plan.question, markup=False, highlight=False)

    def line(self, text: str) -> None:
        """Take one line of the guest's output."""
        word, _, rest = text.partition(" ")
        if word == "@stage":
            self._stage(rest)
        elif word == "@progress":
            self._advance(float(rest))
        elif text.strip() and not self._quiet:
            self._console.print(text, markup=False, highlight=False)

    def end(self, text: str) -> None:
        """Say something after which the terminal is somebody else's."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        print(text, flush=True)

    def _stage(self, name: str) -> None:
        if name == "running":
            self._running_since = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, description=name)
        elif not self._quiet:
            self._console.print(f"{time.monotonic() - self._started:6.1f} s  {name}", highlight=False)

    def _advance(self, virtual_s: float) -> None:
        if self._bar is None:
            return
        wall_s = time.monotonic() - self._running_since
        speed = f"{virtual_s / wall_s:.1f} x real time" if wall_s > 1 else ""
        description = "running" if virtual_s < self._duration_s else "last requests"
        self._bar.update(
            self._task, completed=min(virtual_s, self._duration_s), speed=speed, description=description
        )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
