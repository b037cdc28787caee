"""Draws by the inverse of the distribution function: one uniform number of [0, 1) for each value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from testbed.scenario.workload import LengthSpec
from testbed.units import NS_PER_S


def exponential(uniform: float) -> float:
    """With mean 1; finite, as `uniform` is below 1."""
    return -math.log1p(-uniform)


def geometric(mean: float, uniform: float) -> int:
    """A whole number from 1 on with this mean (1 or more)."""
    if mean == 1:
        return 1
    return 1 + math.floor(math.log1p(-uniform) / math.log1p(-1 / mean))


def poisson_times_ns(
    rate_per_s: float, phase_ns: tuple[int, int], generator: np.random.Generator
) -> Iterator[int]:
    """Arrivals of a Poisson process from the phase's begin on, before its end."""
    start_ns, end_ns = phase_ns
    t_s = 0.0
    while True:
        t_s += exponential(generator.random()) / rate_per_s
        t_ns = start_ns + round(t_s * NS_PER_S)
        if t_ns >= end_ns:
            return
        yield t_ns


def quantile_tokens(spec: LengthSpec, probability: float) -> int:
    """The length below which the share `probability` of all lies, in whole tokens."""
    normal = NormalDist(spec.mu, spec.sigma)
    low, high = normal.cdf(math.log(spec.low)), normal.cdf(math.log(spec.high))
    mixed = low + probability * (high - low)
    if not 0 < mixed < 1:  # the cuts lie so far out that the distribution function is flat there
        return spec.low if mixed <= 0 else spec.high
    exponent = min(max(normal.inv_cdf(mixed), math.log(spec.low)), math.log(spec.high))
    return min(max(round(math.exp(exponent)), spec.low), spec.high)
