"""The points of a sweep: a grid over all parameters, or a random sample of it. Pure."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from testbed.errors import ScenarioError
from testbed.scenario.source import Data, parse_value
from testbed.sweep.amounts import Kind, at_share

MOST_TRIES: Final = 100
"""A range of which so many draws in a row gave nothing new is used up."""


@dataclass(frozen=True)
class Axis:
    """One parameter: the values that it takes, or, without any, all from `low` to `high`."""

    path: str
    """As in `--set`."""
    values: tuple[Data, ...] = ()
    kind: Kind | None = None
    """That its values are of; None for those that are no quantities."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    @property
    def varies(self) -> bool:
        return len(self.values) != 1

    def draw(self, dice: random.Random) -> Data:
        """One of its values, each as likely as any other; of a range, rounded."""
        if self.values:
            return dice.choice(self.values)
        assert self.kind is not None, "only quantities have ranges"
        return self.kind.write(at_share(self.low, self.high, dice.random(), log=self.log))


Point = tuple[Data, ...]
"""A value for each axis."""


def grid_size(axes: Sequence[Axis]) -> int:
    return math.prod(len(axis.values) for axis in axes)


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination, the last axis fastest."""
    return list(product(*(axis.values for axis in axes)))


def sample(axes: Sequence[Axis], count: int, seed: int) -> list[Point]:
    """`count` different points, in the order drawn; fewer where there are no more.

    Where all axes have values these are points of their grid, each as likely as any other.
    """
    dice = random.Random(seed)
    if all(axis.values for axis in axes):
        size = grid_size(axes)
        chosen = dice.sample(range(size), min(count, size))
        return [_numbered(axes, number) for number in chosen]
    points: dict[str, Point] = {}
    tries = 0
    while len(points) < count and tries < MOST_TRIES:
        point = tuple(axis.draw(dice) for axis in axes)
        tries = tries + 1 if repr(point) in points else 0
        points[repr(point)] = point
    return list(points.values())


def _numbered(axes: Sequence[Axis], number: int) -> Point:
    """The point at `number` in the order of `grid`, which may be too long to make."""
    values = []
    for axis in reversed(axes):
        number, index = divmod(number, len(axis.values))
        values.append(axis.values[index])
    return tuple(reversed(values))


def overrides(axes: Sequence[Axis], point: Point) -> tuple[str, ...]:
    """The point as `--set` takes it."""
    return tuple(f"{axis.path}={as_text(value)}" for axis, value in zip(axes, point, strict=True))


def as_text(value: Data) -> str:
    """What YAML reads as `value`: itself where that is so, else JSON, which is YAML, too."""
    if isinstance(value, str):
        try:
            if value.strip() == value and parse_value("", value) == value:
                return value
        except ScenarioError:
            pass
    return json.dumps(value, ensure_ascii=False)
