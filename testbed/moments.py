"""Waiting for a moment of the run's kernel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable


async def until(moment_ns: int) -> None:
    """Sleep until CLOCK_MONOTONIC shows this."""
    await asyncio.sleep(max(0, moment_ns - time.monotonic_ns()) / 1e9)


async def cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel them and wait until each has put away what it holds."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
