"""Intervals of counts: against the binomial sum, and against simulation step by step."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from testbed.audit import chance
from testbed.plan import LinkState, Loss
from testbed.shaping.delay import loss_ratio

FOUR = Loss(model="four_state", p13=0.02, p31=0.3, p32=0.2, p23=0.4, p14=0.01)
BURSTS = Loss(model="gilbert_elliott", p=0.02, r=0.2, loss_bad=0.7, loss_good=0.01)


@pytest.mark.parametrize(
    ("steps", "ratio"), [(1, 0.5), (10, 0.3), (200, 0.01), (300, 0.9), (50, 0.0), (50, 1.0)]
)
def test_a_coin_is_binomial(steps: int, ratio: float) -> None:
    """Outside of the interval lies at most the chance that was asked for; a narrower one would miss more."""
    miss = 1e-3
    chances = [comb(steps, k) * ratio**k * (1 - ratio) ** (steps - k) for k in range(steps + 1)]
    low, high = chance.interval(steps, chance.coin(ratio), miss)
    assert sum(chances[:low]) <= miss / 2 < sum(chances[: low + 1])
    assert sum(chances[high + 1 :]) <= miss / 2 < sum(chances[high:])


def test_large_counts_are_as_a_normal_distribution_has_them() -> None:
    """A hundred million steps: 4.9 sigma on both sides of the mean, within a tenth of a sigma."""
    steps, ratio = 10**8, 1e-4
    sigma = (steps * ratio) ** 0.5
    low, high = chance.interval(steps, chance.coin(ratio))
    assert (steps * ratio - low) / sigma == pytest.approx(4.9, abs=0.1)
    assert (high - steps * ratio) / sigma == pytest.approx(4.9, abs=0.1)


@pytest.mark.parametrize("loss", [FOUR, BURSTS])
def test_a_chain_spreads_as_its_steps_do(loss: Loss) -> None:
    """The 2 % interval of 500 steps holds about 98 % of 4000 simulated counts."""
    chain = chance.losses(loss)
    size, random = len(chain.passed), np.random.default_rng(1)
    ways = np.hstack([chain.passed, chain.counted]).cumsum(axis=1)
    state, count = np.zeros(4000, dtype=int), np.zeros(4000, dtype=int)
    for _ in range(500):
        way = (random.random(4000)[:, None] > ways[state]).sum(axis=1)
        state, count = way % size, count + (way >= size)
    low, high = chance.interval(500, chain, 0.02)
    outside = ((count < low) | (count > high)).mean()
    assert 0.005 < outside < 0.025
    wide = ((count <= low) | (count >= high)).mean()
    assert wide > 0.015


@pytest.mark.parametrize("loss", [FOUR, BURSTS, Loss(model="random", ratio=0.3)])
def test_the_long_run_is_that_of_the_link(loss: Loss) -> None:
    """The chain's share is the one that the shaping reports for the same loss."""
    state = LinkState(rate_bps=1, buffer_bytes=1, delay_ns=1, loss=loss)
    assert chance.lost_in_the_long_run(loss) == pytest.approx(loss_ratio(state))


def test_every_nth_is_a_share() -> None:
    """Periodic loss has a share and no chain."""
    assert chance.lost_in_the_long_run(Loss(model="periodic", every_packets=50)) == 0.02


def test_thinning_takes_its_share() -> None:
    """Half of the losses of a chain are half as many in the long run."""
    chain = chance.losses(BURSTS)
    assert chance.long_run(chance.thinned(chain, 0.5)) == pytest.approx(chance.long_run(chain) / 2)


def test_nothing_happens_in_no_step() -> None:
    """No steps, no counts."""
    assert chance.interval(0, chance.coin(0.5)) == (0, 0)
