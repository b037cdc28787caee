"""Noise: a rate that is never quite the same, and rarely far below (measured so in arXiv 1512.01129)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from testbed.resolve.seeds import generator
from testbed.scenario.link import Excursions, Noise
from testbed.scenario.quantities import FINEST_STEP_NS

LEAST: Final = 0.05
"""No factor is below this; the link never stands still, which is what an outage is for."""
DEVIATIONS: Final = 3.0
"""Draws farther from the mean than this are put there, so that no single one sizes every buffer."""


def steps_in(noise: Noise, length_ns: int) -> int:
    """About how many steps noise of that length has."""
    grid = length_ns // noise.every if noise.cv else 0
    drops = noise.excursions
    return grid + (2 * length_ns // (drops.gap + drops.length) if drops else 0)


def least(noise: Noise) -> float:
    """The least factor that noise may come to: the lowest level within the deepest excursion."""
    depth = noise.excursions.depth if noise.excursions else 0.0
    return max((1 - DEVIATIONS * noise.cv) * (1 - depth), LEAST)


def factors(
    noise: Noise, start_ns: int, end_ns: int, run_seed: int, *names: str | int
) -> list[tuple[int, float]]:
    """From when on the rate is multiplied by what: (t_ns, factor) in rising order, from `start_ns` on.

    Every `every`, 1 + cv * z with an own draw of z from the standard normal distribution, cut at +-3; within
    an excursion times 1 - depth. Draws depend on the run's seed and `names` alone.
    """
    grid = np.arange(start_ns, end_ns, noise.every if noise.cv else end_ns - start_ns, dtype=np.int64)
    draws = generator(run_seed, *names, "level").standard_normal(len(grid))
    level = 1 + noise.cv * np.clip(draws, -DEVIATIONS, DEVIATIONS)
    begins, ends = _excursions(noise.excursions, start_ns, end_ns, generator(run_seed, *names, "excursions"))
    times = np.unique(np.concatenate((grid, begins, ends[ends < end_ns])))
    inside = np.searchsorted(begins, times, "right") - np.searchsorted(ends, times, "right")
    depth = noise.excursions.depth if noise.excursions else 0.0
    values = level[np.searchsorted(grid, times, "right") - 1] * (1 - depth * inside)
    return list(zip(times.tolist(), np.maximum(values, LEAST).tolist(), strict=True))


def _excursions(
    spec: Excursions | None, start_ns: int, end_ns: int, random: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Begins and ends of excursions, which never overlap, and are no finer than the link's steps."""
    begins: list[int] = []
    ends: list[int] = []
    now_ns = start_ns
    while spec is not None:
        now_ns += max(FINEST_STEP_NS, round(random.exponential(spec.gap)))
        if now_ns >= end_ns:
            break
        begins.append(now_ns)
        now_ns += max(FINEST_STEP_NS, round(random.exponential(spec.length)))
        ends.append(now_ns)
    return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)
