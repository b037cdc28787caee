"""A call per interval, on a grid, for as long as there is something to do."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable
from math import ceil
from typing import Any


def end_at_errors() -> None:
    """From now on an error that nobody handles ends the program: half of it would look like one at rest."""
    asyncio.get_running_loop().set_exception_handler(_end)


def _end(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    loop.default_exception_handler(context)
    error = context.get("exception")
    if error is not None:
        traceback.print_exception(error)
    os._exit(1)


class Ticks:
    """Calls `tick` once per interval until it returns False; `wake` goes on at the grid's next moment.

    A task that sleeps would be three system calls more each time. A tick that raises ends the program.
    """

    def __init__(self, interval_s: float, tick: Callable[[], bool]) -> None:
        self._interval_s, self._tick = interval_s, tick
        self._due_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """See to it that the next tick comes; the first one comes an interval after the first call."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if self._due_s is None:
            self._due_s = loop.time()
        intervals = max(1, ceil((loop.time() - self._due_s) / self._interval_s))
        self._due_s += intervals * self._interval_s
        self._timer = loop.call_at(self._due_s, self._go)

    def _go(self) -> None:
        self._timer = None
        try:
            again = self._tick()
        except Exception:  # noqa: BLE001 - a loop that has ended in silence would look like one at rest
            traceback.print_exc()
            os._exit(1)
        if again:
            self.wake()

    def stop(self) -> None:
        """No more ticks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
