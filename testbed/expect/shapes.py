"""The shapes of signals: turns, rest, overshoot, cycles. Pure mathematics on samples.

Settling time and overshoot are those of control engineering, for the answer to a step: Ogata, Modern Control
Engineering, 5th edition, section 5-3 (transient response specifications).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from testbed.measure import Series

REST_SHARE = 0.1
"""A signal rests in the last tenth of what is seen of it, if it rests at all."""
LEAST_ECHO, ALIKE = 0.5, 0.9
"""A signal that repeats itself correlates with itself, one period later, by at least this much; the shortest
of several periods that do nearly as well is the period, the others are its multiples."""
ROUNDING = 1e-9


def turning_points(values: Sequence[float], smallest_move: float) -> int:
    """How often a series changes direction, where a move under `smallest_move` is none."""
    turns, direction = 0, 0
    low = high = values[0]
    for value in values:
        rose = value > low and value - low >= smallest_move
        fell = value < high and high - value >= smallest_move
        if direction <= 0 and rose:
            turns += direction < 0
            direction, low, high = 1, value, value
        elif direction >= 0 and fell:
            turns += direction > 0
            direction, low, high = -1, value, value
        low, high = min(low, value), max(high, value)
    return turns


def settled_from(signal: Series, low: float, high: float) -> float | None:
    """The time of the first sample from which on all lie in [low, high]; None if the last one does not."""
    settled = None
    for time_s, value in zip(reversed(signal.times_s), reversed(signal.values), strict=True):
        if not low <= value <= high:
            break
        settled = time_s
    return settled


def rest(signal: Series) -> float:
    """Where a signal comes to rest: the median of the last tenth of its time. Needs a sample."""
    return median(_last(signal))


def restlessness(signal: Series) -> float:
    """By how much it still moves there, from the least to the most."""
    return max(_last(signal)) - min(_last(signal))


def _last(signal: Series) -> Sequence[float]:
    last_s = signal.times_s[-1]
    since_s = last_s - REST_SHARE * (last_s - signal.times_s[0])
    return signal.within(since_s, math.inf).values


def overshoot(values: Sequence[float], start: float, end: float) -> float:
    """How far values go beyond the end of a step, as a share of the step; 0 for those that stay before it."""
    step = end - start
    return max(0.0, *((value - end) / step for value in values))


@dataclass(frozen=True)
class Cycle:
    """What a signal repeats."""

    period_s: float
    amplitude: float
    """Half of what it goes up and down again in a period, mean over the last periods."""


def cycle(signal: Series, cycles: int) -> Cycle | None:
    """The dominant cycle of a signal that shows at least so many; None where it repeats nothing.

    The period is the lag at which the signal, without its straight trend, resembles itself most (a peak of
    its autocorrelation). The amplitude is that of the signal itself: half of the lesser of the largest rise
    and the largest fall within a period and a half, which holds one of each whatever its phase. So what only
    rises, in steps or not, has none. Needs `metrics.FEWEST_PER_CYCLE` samples per cycle.
    """
    values, interval_s = _evenly(signal)
    lag = _period(values, len(values) // cycles)
    if lag is None:
        return None
    ends = [len(values) - number * lag for number in range(cycles)]
    swings = [_swing(values[max(0, end - lag - lag // 2) : end]) for end in ends]
    amplitude = sum(swings) / len(swings) / 2
    return Cycle(lag * interval_s, amplitude) if amplitude > 0 else None


def samples(signal: Series) -> int:
    """How many samples `cycle` looks at."""
    return len(_evenly(signal)[0]) if len(set(signal.times_s)) > 1 else len(set(signal.times_s))


def _evenly(signal: Series) -> tuple[NDArray[Any], float]:
    """The signal at even times, held between its samples; needs two, at different times."""
    interval_s = median(after - before for before, after in pairwise(sorted(set(signal.times_s))))
    first_s, last_s = signal.times_s[0], signal.times_s[-1]
    at_s = first_s + interval_s * np.arange(round((last_s - first_s) / interval_s) + 1)
    # Samples are a little early or late: each counts for the moment it is nearest to.
    held = np.searchsorted(np.array(signal.times_s), at_s + interval_s / 2, side="right") - 1
    return np.array(signal.values)[held], interval_s


def _period(values: NDArray[Any], longest: int) -> int | None:
    """The lag, in samples, up to `longest`, after which the values repeat themselves."""
    places = np.arange(len(values)) - (len(values) - 1) / 2
    rest_of = values - values.mean()
    rest_of -= places * (places @ rest_of) / (places @ places)
    if np.abs(rest_of).max() <= ROUNDING * np.abs(values).max():
        return None
    echo = _autocorrelation(rest_of, longest + 1)
    away = next((lag for lag in range(1, longest + 1) if echo[lag] < 0), longest)
    peaks = [lag for lag in range(away + 1, longest + 1) if echo[lag - 1] < echo[lag] >= echo[lag + 1]]
    best = max((echo[lag] for lag in peaks), default=0.0)
    if best < LEAST_ECHO:
        return None
    return next(lag for lag in peaks if echo[lag] >= ALIKE * best)


def _autocorrelation(values: NDArray[Any], longest: int) -> NDArray[Any]:
    """The correlation of the first values with the last ones, for lags of 0 to `longest`."""
    count = len(values)
    spectrum = np.fft.rfft(values, 2 * count)
    products = np.fft.irfft(spectrum * spectrum.conj(), 2 * count)[: longest + 1]
    energy = np.concatenate(([0.0], np.cumsum(values**2)))
    lags = np.arange(longest + 1)
    both = np.sqrt(energy[count - lags] * (energy[count] - energy[lags]))
    found: NDArray[Any] = np.divide(products, both, out=np.zeros(longest + 1), where=both > 0)
    return found


def _swing(values: NDArray[Any]) -> float:
    """The lesser of the largest rise and the largest fall."""
    rise = (values - np.minimum.accumulate(values)).max()
    fall = (np.maximum.accumulate(values) - values).max()
    return float(min(rise, fall))
