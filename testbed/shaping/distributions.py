"""Distributions of delay in netem's form: a table of what a draw adds to the mean.

A table has 4096 entries, int16, little-endian, in 1/8192 of the scale (`jitter_ns`), at equally spaced
probabilities: entry i is the quantile of (i + 1/2) / 4096. netem picks an entry with equal chance for each
(kernel net/sched/sch_netem.c, `tabledist`), so the table, not the curve it was made from, is the
distribution: `deviations` and `cdf` are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

ENTRIES = 4096
UNIT = 8192
"""One scale, in a table (NETEM_DIST_SCALE)."""
LARGEST = 32767
"""Largest deviation that a table holds: four scales."""
SCALE_MAX_NS = 2**31 - 1
"""netem caps its jitter here, in silence (`netem_change`)."""
PARETO_SHAPE = 3.0
_ROUNDS = 200
_SPREAD_TOLERANCE = 0.25

Floats = npt.NDArray[np.float64]


def _probabilities() -> Floats:
    return (np.arange(ENTRIES) + 0.5) / ENTRIES


def uniform() -> Floats:
    """Quantiles of the uniform distribution over [-1, 1): what netem does without a table."""
    return 2 * _probabilities() - 1


def normal() -> Floats:
    """Quantiles of the standard normal distribution (iproute2 tc/normal.c has the same curve)."""
    inverse = NormalDist().inv_cdf
    return _standardised(np.array([inverse(one) for one in _probabilities()]))


def pareto() -> Floats:
    """Quantiles of the Pareto distribution of shape 3 (as in iproute2 tc/pareto.c), mean 0, deviation 1.

    A table ends at four deviations, the curve does not: the 1.9 % that lie beyond are put at the end,
    and shift and scale are those of the curve so clipped. iproute2's own table has neither mean 0 nor
    deviation 1, so that its `delay` is not the mean of the delay.
    """
    return _standardised((1 - _probabilities()) ** (-1 / PARETO_SHAPE))


def _standardised(values: Floats) -> Floats:
    """Shifted and scaled so that mean and deviation are 0 and 1 after clipping to what a table holds."""
    shift, scale = float(values.mean()), float(values.std())
    limit = LARGEST / UNIT
    for _ in range(_ROUNDS):
        clipped = np.clip((values - shift) / scale, -limit, limit)
        shift += scale * float(clipped.mean())
        scale *= float(clipped.std())
    return np.clip((values - shift) / scale, -limit, limit)


CURVES: dict[str, Callable[[], Floats]] = {"uniform": uniform, "normal": normal, "pareto": pareto}


def table(name: str) -> bytes:
    """The table of a named distribution: `uniform`, `normal` or `pareto`; KeyError for any other."""
    return _packed(np.rint(CURVES[name]() * UNIT))


def from_samples(samples_ns: Sequence[int]) -> tuple[bytes, int, int]:
    """The table of measured delays, their mean (ns) and the scale (ns) that belongs to the table.

    The table has 4096 of their quantiles, so of more samples than that the rarest on each side may be
    missing, and of fewer the shares are those of whole entries. The scale is the smallest that lets the
    farthest quantile fit; a step of the table is 1/32767 of that distance.

    Raises ValueError, in words, without samples, when all are alike, when one is farther than 8.5 s from
    their mean, or when the table's standard deviation is not within a quarter of that of the samples.
    """
    if not len(samples_ns):
        raise ValueError("no samples")
    samples = np.asarray(samples_ns, dtype=np.float64)
    if samples.min() == samples.max():
        raise ValueError("all delays are alike")
    quantiles = np.quantile(samples, _probabilities(), method="inverted_cdf")
    mean_ns = round(float(quantiles.mean()))
    away = quantiles - mean_ns
    scale_ns = int(np.ceil(np.abs(away).max() * UNIT / LARGEST))
    if scale_ns > SCALE_MAX_NS:
        raise ValueError(f"a sample is {np.abs(away).max() / 1e9:.1f} s from the mean")
    made = _packed(np.rint(away * UNIT / max(scale_ns, 1)))
    _refuse_loss(samples, made, mean_ns, scale_ns)
    return made, mean_ns, scale_ns


def _refuse_loss(samples_ns: Floats, made: bytes, mean_ns: int, scale_ns: int) -> None:
    """ValueError, which says what is lost, when a table of samples is not like them."""
    deviation_ns = float(samples_ns.std())
    found_ns = float(deviations(made, scale_ns).std())
    if abs(found_ns - deviation_ns) <= _SPREAD_TOLERANCE * deviation_ns + 1:
        return
    low_ns, high_ns = extremes(made, scale_ns)
    reach_ns = scale_ns // UNIT + 1
    beyond = np.count_nonzero(
        (samples_ns < mean_ns + low_ns - reach_ns) | (samples_ns > mean_ns + high_ns + reach_ns)
    )
    lost = (
        f"{beyond} of {len(samples_ns)} are too rare for its {ENTRIES} entries"
        if beyond
        else (f"the rarest of {len(samples_ns)} do not fill whole ones of its {ENTRIES} entries")
    )
    spread = f"{found_ns:.0f} ns instead of {deviation_ns:.0f} ns"
    raise ValueError(f"{lost}, so that its standard deviation is {spread}")


def deviation(delay_table: bytes) -> float:
    """Standard deviation of a table, in scales."""
    return float(np.frombuffer(delay_table, "<i2").astype(np.float64).std()) / UNIT


def _packed(values: Floats) -> bytes:
    return values.astype("<i2").tobytes()


def deviations(delay_table: bytes, jitter_ns: int) -> npt.NDArray[np.int64]:
    """All that netem can add to the mean (ns), sorted; each with the same probability.

    The integer arithmetic of `tabledist`: the scale's multiple of 8192 exactly, the rest rounded half away
    from zero.
    """
    entries = np.frombuffer(delay_table, dtype="<i2").astype(np.int64)
    rest = (jitter_ns % UNIT) * entries
    rounded = np.sign(rest) * ((np.abs(rest) + UNIT // 2) // UNIT)
    return np.sort(rounded + (jitter_ns // UNIT) * entries)


def extremes(delay_table: bytes, jitter_ns: int) -> tuple[int, int]:
    """Least and most that netem adds to the mean (ns)."""
    ordered = deviations(delay_table, jitter_ns)
    return int(ordered[0]), int(ordered[-1])


def cdf(delay_table: bytes, jitter_ns: int, deviation_ns: float) -> float:
    """Probability that netem adds at most this to the mean."""
    ordered = deviations(delay_table, jitter_ns)
    return float(np.searchsorted(ordered, deviation_ns, side="right")) / len(ordered)
