"""How late this machine lets go on who has slept. In real time no measurement is better than that.

A timer every 10 ms stands for all the others: those of agents, samplers and changes, and the kernel's own, by
which rates and delays are made. In virtual time nothing is late, and nobody looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from testbed.plan import DIRECTIONS, Plan

INTERVAL_NS: Final = 10_000_000
LEAST_NS: Final = 5_000_000
"""No machine is asked for more: asyncio's own grid is 1 ms, and work takes time."""
SHARE: Final = 0.01
"""Of the run's time that may pass later than allowed; a choice: percentiles up to the 99th hold."""
WORST: Final = 50
"""No single wait may be longer than so many times what is allowed."""


def allowed_ns(plan: Plan) -> int:
    """How late is too late: a round trip of the link at its shortest, or a sample, whichever is less."""
    states = {name: [plan.link[name]] for name in DIRECTIONS}
    for change in plan.changes:
        states[change.direction].append(change.state)
    round_trip_ns = sum(min(state.delay_ns for state in of_one) for of_one in states.values())
    return max(LEAST_NS, min(round_trip_ns, plan.sample_ns))


class Lag:
    """Looks on while a run goes on, and says at its end when it was too late too often."""

    def __init__(self, allowed_ns: int, distrust: Callable[[str], None]) -> None:
        self._allowed_ns, self._distrust = allowed_ns, distrust
        self._span_ns = self._over_ns = self._worst_ns = 0

    async def watch(self, begin_ns: int) -> None:
        """From that moment until it is cancelled; what it has to say it says then.

        By a timer and not by sleeping, for the sake of machines to which a wake-up is work.
        """
        loop, never = asyncio.get_running_loop(), asyncio.Event()
        timer: asyncio.TimerHandle

        def tick() -> None:
            nonlocal begin_ns, timer
            now_ns = time.monotonic_ns()
            self.add(now_ns - begin_ns)
            begin_ns = now_ns
            timer = loop.call_later(INTERVAL_NS / 1e9, tick)

        first_s = (begin_ns + INTERVAL_NS - time.monotonic_ns()) / 1e9
        timer = loop.call_later(max(0.0, first_s), tick)
        try:
            await never.wait()
        finally:
            timer.cancel()
            self.add(max(0, time.monotonic_ns() - begin_ns))  # a stall at the very end has no tick after it
            if said := self.finding():
                self._distrust(said)

    def add(self, span_ns: int) -> None:
        """A wait of INTERVAL_NS that took `span_ns`.

        Whoever would have woken within it, had waited for the rest of it.
        """
        late_ns = max(0, span_ns - INTERVAL_NS)
        self._span_ns += span_ns
        self._over_ns += max(0, late_ns - self._allowed_ns)
        self._worst_ns = max(self._worst_ns, late_ns)

    def finding(self) -> str:
        """Why the run cannot be trusted; empty when it can."""
        share = self._over_ns / self._span_ns if self._span_ns else 0.0
        if share <= SHARE and self._worst_ns <= WORST * self._allowed_ns:
            return ""
        return (
            f"this machine was too slow: for {share:.1%} of the time programs went on more than "
            f"{self._allowed_ns / 1e6:g} ms late, at worst {self._worst_ns / 1e6:.0f} ms; "
            f"allowed are {SHARE:.0%} and {WORST * self._allowed_ns / 1e6:g} ms"
        )
