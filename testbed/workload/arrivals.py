"""Arrivals at a mean rate, spread in time as the scenario says. One generator, nothing else in it.

Uniform and gamma gaps begin in the middle of one, as seen by somebody who comes along at a random time
(the equilibrium renewal process: Cox, "Renewal Theory", 1962, chapter 5), so that the expected number is
exactly rate times time however short the phase and however bursty the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from testbed.scenario.arrivals import (
    ArrivalProcess,
    DiurnalArrivals,
    GammaArrivals,
    OnOffArrivals,
    PoissonArrivals,
    UniformArrivals,
)
from testbed.units import NS_PER_S
from testbed.workload.draws import exponential, poisson_times_ns


def arrival_times_ns(
    process: ArrivalProcess, rate_per_s: float, phase_ns: tuple[int, int], generator: np.random.Generator
) -> Iterator[int]:
    """Arrivals in order, from the phase's begin on and before its end."""
    if isinstance(process, PoissonArrivals):
        yield from poisson_times_ns(rate_per_s, phase_ns, generator)
        return
    start_ns, end_ns = phase_ns
    for t_s in _times_s(process, rate_per_s, generator):
        t_ns = start_ns + round(t_s * NS_PER_S)
        if t_ns >= end_ns:
            return
        yield t_ns


def expected_arrivals(process: ArrivalProcess, rate_per_s: float, span_ns: int) -> float:
    """How many arrivals the first `span_ns` have in the mean."""
    match process:
        case OnOffArrivals(on=on_ns, off=off_ns):
            cycles, rest_ns = divmod(span_ns, on_ns + off_ns)
            busy_ns = cycles * on_ns + min(rest_ns, on_ns)
            return rate_per_s * busy_ns * (on_ns + off_ns) / on_ns / NS_PER_S
        case DiurnalArrivals(period=period_ns, amplitude=amplitude):
            turn = 2 * math.pi / period_ns
            above_ns = amplitude * (1 - math.cos(turn * span_ns)) / turn
            return rate_per_s * (span_ns + above_ns) / NS_PER_S
        case _:
            return rate_per_s * span_ns / NS_PER_S


def _times_s(
    process: UniformArrivals | GammaArrivals | OnOffArrivals | DiurnalArrivals,
    rate_per_s: float,
    generator: np.random.Generator,
) -> Iterator[float]:
    match process:
        case UniformArrivals():
            return _uniform(rate_per_s, generator)
        case GammaArrivals():
            return _gamma(process.cv, rate_per_s, generator)
        case OnOffArrivals():
            return _on_off(process.on / NS_PER_S, process.off / NS_PER_S, rate_per_s, generator)
        case DiurnalArrivals():
            return _diurnal(process.period / NS_PER_S, process.amplitude, rate_per_s, generator)


def _uniform(rate_per_s: float, generator: np.random.Generator) -> Iterator[float]:
    first, number = generator.random(), 0
    while True:
        yield (first + number) / rate_per_s
        number += 1


def _gamma(cv: float, rate_per_s: float, generator: np.random.Generator) -> Iterator[float]:
    """The first gap is one drawn with a weight of its length (shape + 1), from a uniform place in it on."""
    shape = 1 / cv**2
    scale_s = 1 / (shape * rate_per_s)
    t_s = generator.random() * generator.standard_gamma(shape + 1) * scale_s
    while True:
        yield t_s
        t_s += generator.standard_gamma(shape) * scale_s


def _on_off(on_s: float, off_s: float, rate_per_s: float, generator: np.random.Generator) -> Iterator[float]:
    """A Poisson process of the busy time alone, with the pauses put in."""
    busy_rate_per_s = rate_per_s * (on_s + off_s) / on_s
    busy_s = 0.0
    while True:
        busy_s += exponential(generator.random()) / busy_rate_per_s
        yield busy_s + busy_s // on_s * off_s


def _diurnal(
    period_s: float, amplitude: float, rate_per_s: float, generator: np.random.Generator
) -> Iterator[float]:
    """A Poisson process of the highest rate, of which a share is kept (Lewis and Shedler, 1979)."""
    highest_per_s = rate_per_s * (1 + amplitude)
    t_s = 0.0
    while True:
        t_s += exponential(generator.random()) / highest_per_s
        now_per_s = rate_per_s * (1 + amplitude * math.sin(2 * math.pi * t_s / period_s))
        if generator.random() * highest_per_s < now_per_s:
            yield t_s
