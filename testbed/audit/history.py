"""Which state a direction of the link was in, and when: the plan's states at the times that the run noted."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from testbed.plan import Direction, LinkState, Plan
from testbed.units import NS_PER_S

LONG_BEFORE_S = -3600.0
"""No sample is older."""


class History:
    """The states of a direction. A change is under way from when it was due until it was noted."""

    def __init__(self, plan: Plan, direction: Direction, tables: Mapping[str, pl.DataFrame]) -> None:
        changes = sorted(
            (change for change in plan.changes if change.direction == direction), key=lambda one: one.t_ns
        )
        events = tables["events"].filter((pl.col("kind") == "link_set") & (pl.col("name") == direction))
        noted_s = [float(t_s) for t_s in events["t_s"].drop_nulls()]
        self.states: list[LinkState] = [plan.link[direction]]
        self._begun_s, self._set_s = [-math.inf], [-math.inf]
        for number, change in enumerate(changes[: len(noted_s) + 1]):
            self.states.append(change.state)
            self._begun_s.append(max(change.t_ns / NS_PER_S, self._set_s[-1]))
            set_s = noted_s[number] if number < len(noted_s) else math.inf
            self._set_s.append(max(set_s, self._begun_s[-1]))
        self._low, self._high = self._rates()

    def between(self, from_s: float, to_s: float) -> Sequence[LinkState]:
        """Every state that may have been in force at some time in between, in their order."""
        first = bisect_right(self._set_s, from_s) - 1
        return self.states[first : bisect_right(self._begun_s, to_s)]

    def bits(self, from_s: float, to_s: float) -> tuple[float, float]:
        """What a link with always something to send carries in between: at least and at most (bits)."""
        return self._low(to_s) - self._low(from_s), self._high(to_s) - self._high(from_s)

    def _rates(self) -> tuple[_Integral, _Integral]:
        """The integrals of the lowest and of the highest rate that each moment may have had."""
        edges_s, low_bps, high_bps = [LONG_BEFORE_S], [_low_bps(self.states[0])], [self.states[0].rate_bps]
        for number, (before, state) in enumerate(pairwise(self.states), start=1):
            edges_s += [self._begun_s[number], self._set_s[number]]
            low_bps += [min(_low_bps(before), _low_bps(state)), _low_bps(state)]
            high_bps += [max(before.rate_bps, state.rate_bps), state.rate_bps]
        return _Integral(edges_s, low_bps), _Integral(edges_s, high_bps)


def _low_bps(state: LinkState) -> int:
    """A token bucket gives anything down to what it sustains."""
    return state.token_bucket.sustained_bps if state.token_bucket else state.rate_bps


class _Integral:
    """Of a rate that is constant from one edge to the next."""

    def __init__(self, edges_s: Sequence[float], rates_bps: Sequence[int]) -> None:
        finite = [(edge, rate) for edge, rate in zip(edges_s, rates_bps, strict=True) if edge < math.inf]
        self._edges_s, self._rates_bps = [edge for edge, _ in finite], [rate for _, rate in finite]
        pieces = np.diff(self._edges_s) * np.array(self._rates_bps[:-1], dtype=float)
        self._bits = [0.0, *np.cumsum(pieces).tolist()]

    def __call__(self, t_s: float) -> float:
        last = max(bisect_right(self._edges_s, t_s) - 1, 0)
        return float(self._bits[last] + self._rates_bps[last] * (t_s - self._edges_s[last]))
