"""What is said to an agent, and for how long of each beat it stands still. Knows no clock and no process."""

from __future__ import annotations

from typing import Final

from testbed.plan import Fault

ROUTER: Final = "router"
BEAT_S: Final = 0.1
"""Long against the 1 ms of the run's timers, short against what counts as a failure (a second or more)."""


def orders(fault: Fault) -> tuple[str, str]:
    """Lines for the agent's stdin as the fault begins and as it ends; empty where nothing is to be said.

    The router computes nothing, and reads no orders: that it stands still for a part of each beat is all.
    """
    match fault.kind:
        case "slow" if fault.target != ROUTER:
            return f"slow {fault.amount:g}", "slow 1"
        case "corrupt":
            return f"corrupt {fault.amount:.0f}", ""
        case "fill":
            return "fill on", "fill off"
        case _:
            return "", ""


def beat(factor: float) -> tuple[float, float]:
    """Seconds of a beat that an agent stands still, then runs, so that it runs 1/`factor` of the time."""
    running_s = BEAT_S / factor
    return BEAT_S - running_s, running_s
