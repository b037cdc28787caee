"""Waiting for a moment of the run's kernel."""

from __future__ import annotations

import asyncio
import time


async def until(moment_ns: int) -> None:
    """Sleep until CLOCK_MONOTONIC shows this."""
    await asyncio.sleep(max(0, moment_ns - time.monotonic_ns()) / 1e9)
