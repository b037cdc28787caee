"""From samples to figures: medians, ratios, verdicts, and how straight a line is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Literal

BUSY_PROCESSORS = 0.1
"""A machine on which others keep more than this busy is not quiet."""


@dataclass(frozen=True)
class Conditions:
    """What the machine did just before a sample: `load` is its load average over a minute, which still has
    the sample before in it; `busy_processors` is how many were busy while the benchmark itself slept.
    """

    load: float
    busy_processors: float


@dataclass(frozen=True)
class Reading:
    """One sample of everything that a benchmark measures at once."""

    values: Mapping[str, float]
    conditions: Conditions


@dataclass(frozen=True)
class Target:
    """What the median must reach."""

    sense: Literal["at most", "at least"]
    bound: float


@dataclass(frozen=True)
class Beside:
    """What a user would take instead, measured in the same run; without samples `skipped` says why."""

    name: str
    samples: tuple[float, ...] = ()
    skipped: str = ""


@dataclass(frozen=True)
class Figure:
    """One quantity with all its samples; `made_of`: its parts, largest first, which are what limits it."""

    name: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None
    beside: tuple[Beside, ...] = ()
    made_of: str = ""
    conditions: tuple[Conditions, ...] = ()

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.samples)

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None without one."""
        if self.target is None:
            return None
        if self.target.sense == "at most":
            return self.median <= self.target.bound
        return self.median >= self.target.bound

    @property
    def quiet(self) -> bool:
        """Whether nobody else kept the machine busy before any of the samples."""
        return all(one.busy_processors <= BUSY_PROCESSORS for one in self.conditions)

    def ratio(self, other: Beside) -> float | None:
        """How many times better than `other` this is; None when that was skipped."""
        if not other.samples:
            return None
        there = median(other.samples)
        return there / self.median if self.unit == "s" else self.median / there


def figure(
    name: str,
    unit: str,
    readings: Sequence[Reading],
    value: str,
    *,
    target: Target | None = None,
    beside: tuple[Beside, ...] = (),
    made_of: str = "",
) -> Figure:
    """The figure that `value` of all readings makes."""
    return Figure(
        name,
        unit,
        tuple(one.values[value] for one in readings),
        target,
        beside,
        made_of,
        tuple(one.conditions for one in readings),
    )


def shares(parts: Mapping[str, Sequence[float]], at_least: float = 0.03) -> str:
    """Which part takes how much of the sum of the parts' medians, largest first; small ones left out."""
    medians = {name: median(samples) for name, samples in parts.items()}
    whole = sum(medians.values())
    ordered = sorted(medians.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{name} {value:.3g} s ({100 * value / whole:.0f} %)"
        for name, value in ordered
        if value >= at_least * whole
    )


@dataclass(frozen=True)
class Line:
    """cost = fixed + slope * size."""

    fixed: float
    slope: float


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    """The line of least squares through the points; ValueError when all sizes are the same."""
    mean_size, mean_cost = fmean(sizes), fmean(costs)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    if not spread:
        raise ValueError("a line needs two different sizes")
    pairs = zip(sizes, costs, strict=True)
    slope = sum((size - mean_size) * (cost - mean_cost) for size, cost in pairs) / spread
    return Line(mean_cost - slope * mean_size, slope)


def worst_deviation_percent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """How far the costs per size of neighbouring steps lie from the slope of the fitted line, at worst.

    A step's cost per size is (cost difference) / (size difference), so that what a run costs anyhow, such as
    its boot, hides nothing. Infinite when the line does not rise.
    """
    slope = fit(sizes, costs).slope
    if slope <= 0:
        return float("inf")
    points = sorted(zip(sizes, costs, strict=True))
    steps = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points)]
    return max(100 * abs(step / slope - 1) for step in steps)
