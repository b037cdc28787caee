"""Shapes of signals: rest, overshoot and cycles of signals whose answers are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.expect import shapes
from testbed.measure import Series

STEP_S = 0.05


def sampled(value_at: Callable[[float], float], until_s: float, step_s: float = STEP_S) -> Series:
    """A function of time, as a signal."""
    times_s = [index * step_s for index in range(round(until_s / step_s))]
    return Series(tuple(times_s), tuple(value_at(t_s) for t_s in times_s))


def first_order(tau_s: float) -> Callable[[float], float]:
    """The answer of a first-order system to a unit step."""
    return lambda t_s: 1 - math.exp(-t_s / tau_s)


def second_order(damping: float, natural_per_s: float = 2.0) -> Callable[[float], float]:
    """The answer of an underdamped second-order system to a unit step (Ogata, section 5-3)."""
    damped_per_s = natural_per_s * math.sqrt(1 - damping**2)

    def value(t_s: float) -> float:
        swing = math.cos(damped_per_s * t_s)
        swing += damping / math.sqrt(1 - damping**2) * math.sin(damped_per_s * t_s)
        return 1 - math.exp(-damping * natural_per_s * t_s) * swing

    return value


@given(st.floats(0.3, 3.0), st.floats(0.01, 0.2))
@settings(max_examples=30, deadline=None)
def test_a_first_order_answer_settles_when_its_exponential_says(tau_s: float, band: float) -> None:
    """Within a band b of its end after tau ln(1/b), to the next sample; and it never goes beyond."""
    signal = sampled(first_order(tau_s), 20 * tau_s)
    found_s = shapes.settled_from(signal, 1 - band, 1 + band)
    assert found_s is not None
    assert 0 <= found_s - tau_s * math.log(1 / band) <= STEP_S + 1e-9
    assert shapes.overshoot(signal.values, 0.0, 1.0) == 0.0
    assert shapes.rest(signal) == pytest.approx(1.0, abs=1e-6)


@given(st.floats(0.1, 0.9), st.floats(-50, 50), st.floats(-100, 100).filter(lambda step: abs(step) > 0.1))
@settings(max_examples=30, deadline=None)
def test_a_second_order_answer_overshoots_by_its_damping(damping: float, start: float, step: float) -> None:
    """By exp(-pi z / sqrt(1 - z^2)) of the step, up or down, from wherever."""
    unit = sampled(second_order(damping), 60.0)
    values = [start + step * value for value in unit.values]
    wanted = math.exp(-math.pi * damping / math.sqrt(1 - damping**2))
    assert shapes.overshoot(values, start, start + step) == pytest.approx(wanted, abs=0.005)
    assert shapes.rest(Series(unit.times_s, tuple(values))) == pytest.approx(
        start + step, abs=0.02 * abs(step)
    )


@given(
    st.floats(1.0, 6.0), st.floats(0.1, 1e5), st.floats(0, 2 * math.pi), st.floats(-1, 1), st.integers(3, 6)
)
@settings(max_examples=40, deadline=None)
def test_a_sine_has_its_period_and_its_amplitude(
    period_s: float, amplitude: float, phase: float, drift: float, cycles: int
) -> None:
    """Whatever its phase, and on top of a slow drift."""
    slope = 0.05 * drift * amplitude / period_s
    signal = sampled(
        lambda t_s: slope * t_s + amplitude * math.sin(2 * math.pi * t_s / period_s + phase),
        (cycles + 0.6) * period_s,
    )
    found = shapes.cycle(signal, cycles)
    assert found is not None
    assert found.period_s == pytest.approx(period_s, abs=1.5 * STEP_S)
    assert found.amplitude == pytest.approx(amplitude, rel=0.1)


@given(st.integers(1, 39), st.integers(1, 39), st.sampled_from([(0, 1, 1), (0, 1, 0), (0, 1, 3)]))
@settings(max_examples=60, deadline=None)
def test_steps_and_ramps_are_no_cycles(one: int, other: int, levels: tuple[int, int, int]) -> None:
    """Neither a step, nor a pulse, nor a stair; nor anything that stands still or only rises."""
    first, second = sorted((one, other))
    steps = [levels[0] if t < first else levels[1] if t < second else levels[2] for t in range(40)]
    times_s = tuple(float(t) for t in range(40))
    assert shapes.cycle(Series(times_s, tuple(map(float, steps))), 3) is None
    rising = tuple(float(t // (first % 7 + 1)) for t in range(40))
    assert shapes.cycle(Series(times_s, rising), 3) is None


def test_what_dies_away_is_measured_where_it_ends() -> None:
    """The amplitude is that of the last cycles, not that of the first."""
    signal = sampled(lambda t_s: math.exp(-t_s / 5) * math.sin(2 * math.pi * t_s), 20.0)
    found = shapes.cycle(signal, 3)
    assert found is not None
    assert found.amplitude < 0.05


def test_too_few_cycles_are_none() -> None:
    """Two and a half cycles are not three."""
    signal = sampled(lambda t_s: math.sin(2 * math.pi * t_s / 4), 10.0)
    assert shapes.cycle(signal, 3) is None
    assert shapes.cycle(signal, 2) is not None


def test_late_samples_do_not_hide_a_cycle() -> None:
    """Samples a little off their grid, as writers that share a processor take them, show the same."""
    times_s = tuple(index * 0.25 + (0.03 if index % 3 else 0.0) for index in range(120))
    found = shapes.cycle(Series(times_s, tuple(math.sin(math.pi * t_s / 2) for t_s in times_s)), 3)
    assert found is not None
    assert found.period_s == pytest.approx(4.0, abs=0.25)


def test_samples_at_one_moment_are_one() -> None:
    """A signal of one moment has no interval."""
    assert shapes.samples(Series((1.0, 1.0), (0.0, 1.0))) == 1
    assert shapes.samples(Series((), ())) == 0
