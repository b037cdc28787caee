"""How many packets a random process may take: two-sided intervals, exact for every process of the plan.

A loss process is a Markov chain whose steps may count one. The distribution of its count after n steps has
the generating function start * M(z)^n * 1, where M holds the transition probabilities, those of counted steps
times z. Taken at the roots of unity it is the discrete Fourier transform of the distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from testbed.plan import Loss

MISS = 1e-6
"""Chance of a miss, both sides together: of a million sound links one is distrusted."""
MOST_POINTS = 1 << 15

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Chain:
    """`passed`, `counted`: transition probabilities of steps that do not count and do; starts in state 0."""

    passed: Floats
    counted: Floats


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


def thinned(chain: Chain, ratio: float) -> Chain:
    """The same chain, of whose counted steps only this share counts."""
    return Chain(chain.passed + (1 - ratio) * chain.counted, ratio * chain.counted)


def long_run(chain: Chain) -> float:
    """Share of steps that count in the long run."""
    step = chain.passed + chain.counted
    size = len(step)
    equations = np.vstack([step.T - np.eye(size), np.ones(size)])
    stay = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return float(stay @ chain.counted.sum(axis=1))


def lost_in_the_long_run(loss: Loss | None) -> float:
    """Share of packets that a loss process takes."""
    if loss is not None and loss.model == "periodic":
        return 1 / loss.every_packets
    return long_run(losses(loss))


def interval(steps: int, chain: Chain, miss: float = MISS) -> tuple[int, int]:
    """Fewest and most counts after `steps`, outside of which the chain comes with at most this chance."""
    if steps == 0:
        return 0, 0
    points = 1 << min(steps, MOST_POINTS - 1).bit_length()
    z = np.exp(-2j * np.pi * np.arange(points // 2 + 1) / points)[:, None, None]
    power = _power(chain.passed + z * chain.counted, steps)
    chances = np.fft.irfft(power[:, 0, :].sum(axis=1), n=points)
    first = 0
    if steps >= points:  # counts are known up to multiples of `points`; those near the mean are meant
        mean = round(steps * long_run(chain))
        first = max(0, mean - points // 2)
        chances = np.roll(chances, -(first % points))
    return first + _within(chances, miss / 2), first + points - 1 - _within(chances[::-1], miss / 2)


def _power(matrices: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """Each matrix to this power, by squaring."""
    if matrices.shape[1] == 1:
        return matrices**exponent
    return np.linalg.matrix_power(matrices, exponent)


def _within(chances: Floats, miss: float) -> int:
    """The first index up to which more than `miss` has come together."""
    return int(np.searchsorted(np.cumsum(np.maximum(chances, 0.0)), miss, side="right"))
