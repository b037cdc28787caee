"""An event loop whose clock moves only while everybody sleeps, for tests only."""

from __future__ import annotations

import asyncio
import math
import selectors


class _Jump(selectors.SelectSelector):
    """Never waits: moves the clock to the moment up to which it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for ever"
        self.now_ns += math.ceil(max(0, timeout) * 1e9)
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jump = _Jump()
        super().__init__(self.jump)

    def time(self) -> float:
        return self.jump.now_ns / 1e9
