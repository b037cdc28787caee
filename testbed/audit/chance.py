"""How many packets a random process may take: two-sided intervals for every process of the plan.

A loss process is a Markov chain whose steps may count one. The distribution of its count after n steps has
the generating function start * M(z)^n * 1, where M holds the transition probabilities, those of counted steps
times z; that of several chains together is the product. At the roots of unity it is the discrete Fourier
transform of the distribution, which makes an interval exact. At real z it bounds both tails (Chernoff 1952):
that tells how far the counts can be spread, and where they are spread too far for a transform, or the chains
are too many, it is the interval, wider than the exact one by a tenth or so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.plan import Loss

MISS = 1e-6
"""Chance of a miss, both sides together: of a million sound links one is distrusted."""
MOST_POINTS, MOST_CHAINS = 1 << 15, 8
"""Of a Fourier transform, and chains in it."""
NOWHERE = 1e-18
"""What lies outside of the points of a transform comes back among them: so little that it does not matter."""
_TILTS = np.logspace(-12, 2, 141)
"""Logarithms of z: steps of a quarter are within 1 % of the best bound."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chain:
    """`passed`, `counted`: transition probabilities of steps that do not count and do.

    It starts in state 0 unless `start` has a chance for each state.
    """

    passed: Floats
    counted: Floats
    start: Floats | None = None

    @property
    def first(self) -> Floats:
        """Chance of each state before the first step."""
        return np.eye(len(self.passed))[0] if self.start is None else self.start


Part = tuple[int, Chain]
"""A number of steps and their chain."""


def coin(ratio: float) -> Chain:
    """Every step counts with the same chance."""
    return Chain(np.array([[1 - ratio]]), np.array([[ratio]]))


def losses(loss: Loss | None) -> Chain:
    """The chain of a loss process, in the order in which sch_netem.c steps and loses.

    `periodic` has no chance in it and is not for this function.
    """
    if loss is None:
        return coin(0.0)
    if loss.model == "random":
        return coin(loss.ratio)
    if loss.model == "gilbert_elliott":  # loss_gilb_ell: lost by the state before the step
        step = np.array([[1 - loss.p, loss.p], [loss.r, 1 - loss.r]])
        lost = np.array([[loss.loss_good], [loss.loss_bad]])
        return Chain(step * (1 - lost), step * lost)
    assert loss.model == "four_state", loss.model
    step = np.zeros((4, 4))  # loss_4state: lost in the states 3 and 4, except when already single
    step[0] = [1 - loss.p13 - loss.p14, 0, loss.p13, loss.p14]
    step[1] = [0, 1 - loss.p23, loss.p23, 0]
    step[2] = [loss.p31, loss.p32, 1 - loss.p31 - loss.p32, 0]
    step[3] = [1, 0, 0, 0]
    lost = np.array([0.0, 0.0, 1.0, 1.0])
    return Chain(step * (1 - lost), step * lost)


def drops(loss: Loss | None, duplicate: float) -> Chain:
    """What netem counts as dropped, packet by packet that comes to it (`netem_enqueue`).

    A packet that is to be doubled and is lost goes on as one. Of one that is not lost the copy is enqueued
    once more, for which the loss process takes another step.
    """
    chain = losses(loss)
    kept, lost = chain.passed, chain.counted
    passed = (1 - duplicate) * kept + duplicate * (lost + kept @ kept)
    return Chain(passed, (1 - duplicate) * lost + duplicate * kept @ lost)


def vanished(loss: Loss | None, duplicate: float) -> Chain:
    """Packets of which nothing arrives."""
    chain = losses(loss)
    kept, lost = chain.passed, chain.counted
    passed = (1 - duplicate) * kept + duplicate * (lost + kept @ (kept + lost))
    return Chain(passed, (1 - duplicate) * lost)


def doubled(loss: Loss | None, duplicate: float) -> Chain:
    """Packets that arrive twice."""
    chain = losses(loss)
    kept, lost = chain.passed, chain.counted
    passed = (1 - duplicate) * (kept + lost) + duplicate * (lost + kept @ lost)
    return Chain(passed, duplicate * kept @ kept)


def copies(loss: Loss | None, duplicate: float) -> Chain:
    """Packets that the delay stage makes two of; whether it then loses the copy does not matter."""
    chain = losses(loss)
    kept, lost = chain.passed, chain.counted
    passed = (1 - duplicate) * (kept + lost) + duplicate * lost
    return Chain(passed, duplicate * kept @ (kept + lost))


def single(loss: Loss | None, duplicate: float) -> Chain:
    """Packets that arrive once."""
    none, two = vanished(loss, duplicate), doubled(loss, duplicate)
    others = none.counted + two.counted
    return Chain(others, none.passed - two.counted)


def in_the_long_run(chain: Chain) -> Chain:
    """The same chain, which has been going on for long."""
    step = chain.passed + chain.counted
    size = len(step)
    equations = np.vstack([step.T - np.eye(size), np.ones(size)])
    stay = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return Chain(chain.passed, chain.counted, np.maximum(stay, 0.0))


def long_run(chain: Chain) -> float:
    """Share of steps that count in the long run."""
    return float(in_the_long_run(chain).first @ chain.counted.sum(axis=1))


def lost_in_the_long_run(loss: Loss | None) -> float:
    """Share of packets that a loss process takes."""
    if loss is not None and loss.model == "periodic":
        return 1 / loss.every_packets
    return long_run(losses(loss))


def interval(steps: int, chain: Chain, miss: float = MISS) -> tuple[int, int]:
    """Fewest and most counts after `steps`, outside of which the chain comes with at most this chance."""
    return interval_of([(steps, chain)], miss)


def interval_of(parts: Sequence[Part], miss: float = MISS) -> tuple[int, int]:
    """The same of several chains, each on its own, of whose counts there is only the sum."""
    parts = [part for part in parts if part[0]]
    tails = _Tails(parts)
    low, high = tails.bounds(NOWHERE)
    points = 1 << (high - low).bit_length()
    if low >= high:
        return low, high
    if points > MOST_POINTS or len(parts) > MOST_CHAINS:
        return tails.bounds(miss)
    z = np.exp(-2j * np.pi * np.arange(points // 2 + 1) / points)[:, None, None]
    spectrum = np.ones(len(z), dtype=np.complex128)
    for steps, chain in parts:
        spectrum *= (chain.first @ _power(chain.passed + z * chain.counted, steps)).sum(axis=1)
    chances = np.roll(np.fft.irfft(spectrum, n=points), -(low % points))
    return low + _within(chances, miss / 2), low + points - 1 - _within(chances[::-1], miss / 2)


def _power(matrices: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """Each matrix to this power, by squaring."""
    if matrices.shape[1] == 1:
        return matrices**exponent
    return np.linalg.matrix_power(matrices, exponent)


def _within(chances: Floats, miss: float) -> int:
    """The first index up to which more than `miss` has come together."""
    return int(np.searchsorted(np.cumsum(np.maximum(chances, 0.0)), miss, side="right"))


class _Tails:
    """Chernoff's bounds: P(count >= k) <= E[z^count] / z^k for every z > 1, and likewise below."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._up, self._down = np.zeros(_TILTS.size), np.zeros(_TILTS.size)
        self._steps = sum(steps for steps, _ in parts)
        for steps, chain in parts:
            self._up += _log_moments(steps, chain, _TILTS)
            self._down += _log_moments(steps, chain, -_TILTS)

    def bounds(self, miss: float) -> tuple[int, int]:
        """Fewest and most, with at most half of `miss` on either side."""
        away = math.log(2 / miss)
        most, least = ((self._up + away) / _TILTS).min(), ((-away - self._down) / _TILTS).max()
        return max(math.floor(least) + 1, 0), min(math.ceil(most) - 1, self._steps)


def _log_moments(steps: int, chain: Chain, tilts: Floats) -> Floats:
    """Logarithm of E[exp(tilt * count)], by squaring with a scale of its own for each tilt."""
    base = chain.passed + np.exp(tilts)[:, None, None] * chain.counted
    if base.shape[1] == 1:
        near_one = np.log1p(np.maximum(np.expm1(tilts) * chain.counted[0, 0], -0.5))
        return steps * np.where(np.abs(tilts) < 0.5, near_one, np.log(base[:, 0, 0]))  # noqa: PLR2004
    row = np.broadcast_to(chain.first, (tilts.size, 1, len(chain.first)))
    row_log, base_log = np.zeros(tilts.size), np.zeros(tilts.size)
    while steps:
        if steps & 1:
            row = row @ base
            size = row.sum(axis=(1, 2))
            row, row_log = row / size[:, None, None], row_log + base_log + np.log(size)
        size = base.max(axis=(1, 2))
        base = base / size[:, None, None]
        base, base_log = base @ base, 2 * (base_log + np.log(size))
        steps >>= 1
    return row_log
