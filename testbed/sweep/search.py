"""Where something stops holding: bisection between a value at which it holds and one at which it fails. Pure.

The search asks, and whoever drives it answers: it is a generator of the values to try next, which is sent
what became of each.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from testbed.sweep.amounts import Kind, at_share

Outcome = Literal["holds", "fails", "unknown"]
Agree = Literal["all", "majority"]
MOST_STEPS: Final = 60


@dataclass(frozen=True)
class Boundary:
    """What a search came to.

    `found`: it holds at `holds` and fails at `fails`, which are as close as was asked for, or neighbours.
    `none`: both ends gave `both`. `unknown`: it could not be told at `unknown_at`.
    """

    status: Literal["found", "none", "unknown"]
    holds: float | None = None
    fails: float | None = None
    both: Outcome | None = None
    unknown_at: float | None = None


@dataclass(frozen=True)
class Closeness:
    """When two values are close enough: by a ratio (the middle is then the geometric one) or a distance."""

    ratio: float | None = None
    distance: float = 0.0

    def enough(self, low: float, high: float) -> bool:
        if self.ratio is not None:
            return high <= low * self.ratio * (1 + 1e-9)
        return high - low <= self.distance * (1 + 1e-9)

    def middle(self, low: float, high: float) -> float:
        return at_share(low, high, 0.5, log=self.ratio is not None)


def bisect(
    low: float, high: float, close: Closeness, kind: Kind
) -> Generator[tuple[float, ...], Sequence[Outcome], Boundary]:
    """Ask for both ends, then for one middle after the other; returns the boundary.

    It finds a place where it changes. Whether there is but one, nobody can tell from a few values.
    """
    outcomes = yield (low, high)
    for value, outcome in zip((low, high), outcomes, strict=True):
        if outcome == "unknown":
            return Boundary("unknown", unknown_at=value)
    at_low, at_high = outcomes
    if at_low == at_high:
        return Boundary("none", both=at_low)
    for _ in range(MOST_STEPS):
        middle = kind.snap(close.middle(low, high))
        if close.enough(low, high) or not low < middle < high:
            break
        (outcome,) = yield (middle,)
        if outcome == "unknown":
            return Boundary("unknown", unknown_at=middle)
        low, high = (middle, high) if outcome == at_low else (low, middle)
    return (
        Boundary("found", holds=low, fails=high)
        if at_low == "holds"
        else Boundary("found", holds=high, fails=low)
    )


def agreed(outcomes: Sequence[Outcome], agree: Agree) -> Outcome:
    """What several seeds say together.

    `all`: one that fails is enough to fail. `majority`: what more than half of them say; a tie fails.
    Either is unknown where an answer that is missing could still decide it.
    """
    holds, fails = outcomes.count("holds"), outcomes.count("fails")
    if agree == "all":
        return "fails" if fails else "unknown" if holds < len(outcomes) else "holds"
    if 2 * holds > len(outcomes):
        return "holds"
    return "fails" if 2 * fails >= len(outcomes) else "unknown"
