"""What the terminal shows while a run goes on: stages, then a bar in virtual time with the speed factor.

Below the bar: what the link carries and the threshold, lately. Where there is no terminal there is a line for
each stage, and no control characters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from testbed.plan import Plan
from testbed.sparkline import Lately


class _Lines(Bar):
    """The bar, and a line below it."""

    below = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield Text(self.below, no_wrap=True, overflow="crop")


class Progress:
    """Reads what `inside` prints, line by line, and the end of the `journal`, a directory, at each step.

    Without a terminal, or `quiet`, it draws no bar.
    """

    def __init__(self, plan: Plan, console: Console, journal: Path, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._lately = Lately(journal, blocks=console.encoding.startswith("utf"))
        self._duration_s = plan.duration_ns / 1e9
        self._started = time.monotonic()
        self._running_since = 0.0
        self._bar: _Lines | None = None
        if console.is_terminal and not quiet:
            self._bar = _Lines(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f} of {task.total:.0f} virtual s   {task.fields[speed]}"),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("booting", total=self._duration_s, speed="")
        if not quiet:
            headline = f"{plan.name}  seed {plan.seed}  scale {plan.scale:g}"
            console.print(headline, markup=False, highlight=False, style="bold")
            console.print(plan.question, markup=False, highlight=False)

    def line(self, text: str) -> None:
        """Take one line of the guest's output."""
        word, _, rest = text.partition(" ")
        if word == "@stage":
            self._stage(rest)
        elif word == "@progress":
            with suppress(ValueError):  # on a serial line a kernel speaks in the middle of it
                self._advance(float(rest))
        elif text.strip() and not self._quiet:
            self._console.print(_printable(text), markup=False, highlight=False)

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
        self._lately.look()
        self._bar.below = str(self._lately)
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


def _printable(text: str) -> str:
    """Without what would control the terminal: a kernel prints whatever it is told."""
    return "".join(one if one.isprintable() or one == "\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
