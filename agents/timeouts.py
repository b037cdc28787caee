"""How long to wait: from what is still to come and how fast things came so far."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from agents.config import Timeouts

LATE = 4
"""Who looks regularly and finds that so many intervals have passed since the last look has not run itself, or
rested, and finds fault with nobody else.
"""
MARGIN = 2.0


def patience_s(floor_ns: int, outer_ns: int, size_bytes: int, goodput_bps: float) -> float:
    """How long something may go on without a sign of progress.

    A timeout of the ladder, and twice as long as `size_bytes` take at `goodput_bps`; though no more than half
    of the way to the next timeout of the ladder, `outer_ns`, so that the order holds whatever the size. A
    goodput of 0 says that nothing was measured yet: the timeout alone.
    """
    most_s = (floor_ns + outer_ns) / 2e9
    if goodput_bps <= 0:
        return floor_ns / 1e9
    return min(floor_ns / 1e9 + MARGIN * size_bytes * 8 / goodput_bps, most_s)


def ladder(timeouts: Timeouts) -> list[str]:
    """What is wrong with the order of the timeouts, in words; each must be longer than the next one.

    Otherwise the outer one gives up what the inner one would have saved.
    """
    steps = list(msgspec.structs.asdict(timeouts).items())
    return [
        f"timeouts.{_name(outer)} ({_seconds(longer_ns)}) is not longer than "
        f"timeouts.{_name(inner)} ({_seconds(shorter_ns)})"
        for (outer, longer_ns), (inner, shorter_ns) in pairwise(steps)
        if longer_ns <= shorter_ns
    ]


def check(timeouts: Timeouts) -> None:
    """End the program, with the reason, where they are out of order."""
    wrong = ladder(timeouts)
    if wrong:
        raise SystemExit("; ".join(wrong))


def _name(field: str) -> str:
    return field.removesuffix("_ns")


def _seconds(t_ns: int) -> str:
    return f"{t_ns / 1e9:g}s"
