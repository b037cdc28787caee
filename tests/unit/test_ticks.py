"""A call per interval, on a clock that moves only while everybody sleeps."""

from __future__ import annotations

import asyncio

import pytest

from agents.ticks import Ticks
from tests.unit.jumping_loop import JumpingLoop


def test_ticks_stay_on_their_grid() -> None:
    """They rest when there is nothing to do, and go on where they would have been."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        loop, came = runner.get_loop(), []

        def tick() -> bool:
            came.append(loop.time())
            return len(came) % 3 != 0

        async def scenario() -> None:
            ticks = Ticks(0.25, tick)
            await asyncio.sleep(1.1)
            ticks.wake()
            ticks.wake()
            await asyncio.sleep(2.1)
            ticks.wake()
            await asyncio.sleep(0.3)
            ticks.stop()
            await asyncio.sleep(5)
            ticks.wake()
            await asyncio.sleep(0.3)

        runner.run(scenario())
    assert came == pytest.approx([1.35, 1.6, 1.85, 3.35, 8.6], abs=0.003)
