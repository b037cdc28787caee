"""From samples to figures: medians, ratios, verdicts, and how straight a line is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

BUSY_PROCESSORS = 0.1
"""A machine on which others keep more than this busy is not quiet."""


@dataclass(frozen=True)
class Conditions:
    """What the machine did just before a sample: `load` is its load average over a minute, which still has
    the sample before in it; `busy_processors` is how many were busy while the benchmark itself slept;
    `loop_million_per_s` is how fast it turned in an empty Python loop.
    """

    load: float
    busy_processors: float
    loop_million_per_s: float


@dataclass(frozen=True)
class Reading:
    """One sample of everything that a benchmark measures at once."""

    values: Mapping[str, float]
    conditions: Conditions


@dataclass(frozen=True)
class Target:
    """What the median must reach; `within`: so far from 0, to either side."""

    sense: Literal["at most", "at least", "within"]
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
        match self.target.sense:
            case "at most":
                return self.median <= self.target.bound
            case "at least":
                return self.median >= self.target.bound
            case "within":
                return abs(self.median) <= self.target.bound

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


LINEARITY = Target("within", 20.0)


def growth(
    name: str, what: str, sizes: Sequence[float], readings: Sequence[Reading], keys: Sequence[str]
) -> Figure:
    """How straight a cost is in the size: `keys` has the reading's value for each of the sizes, ascending.

    A sample is what one more costs between the middle and the largest size, against between the smallest
    and the middle, in per cent more; what a run costs anyhow, such as its boot, is in neither. Costs are
    processor seconds, and sizes of one sample are measured one after the other, so that neither others' work
    nor a machine that is slow for a while bends the line.
    """
    costs = [median(one.values[key] for one in readings) for key in keys]
    return Figure(
        name,
        "% more in the upper half",
        tuple(bend_percent(sizes, [one.values[key] for key in keys]) for one in readings),
        LINEARITY,
        made_of="processor: "
        + ", ".join(f"{size:g} {what} {cost:.3g} s" for size, cost in zip(sizes, costs, strict=True)),
        conditions=tuple(one.conditions for one in readings),
    )


def bend_percent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """By how much the cost of one more is higher in the last step than in the first.

    Infinite when the first step costs nothing: that was not measured well enough to say anything.
    """
    first, last = ((costs[b] - costs[a]) / (sizes[b] - sizes[a]) for a, b in ((0, 1), (-2, -1)))
    return 100 * (last / first - 1) if first > 0 else float("inf")
