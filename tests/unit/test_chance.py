"""Intervals of counts: against the binomial sum, and against simulation step by step."""

from __future__ import annotations

from math import comb

import numpy as np
import numpy.typing as npt
import pytest

from testbed.audit import chance
from testbed.plan import LinkState, Loss
from testbed.shaping.delay import loss_ratio

FOUR = Loss(model="four_state", p13=0.02, p31=0.3, p32=0.2, p23=0.4, p14=0.01)
Counts = npt.NDArray[np.int64]
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


def enqueued(loss: Loss, duplicate: float, packets: int, trains: int) -> dict[str, Counts]:
    """What became of so many packets, in many trains at once, step by step as in netem_enqueue."""
    random = np.random.default_rng(5)
    state = np.zeros(trains, dtype=int)
    chain = chance.losses(loss)
    ways = np.hstack([chain.passed, chain.counted]).cumsum(axis=1)

    def loss_event(happens: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        way = np.minimum((random.random(trains)[:, None] > ways[state]).sum(axis=1), ways.shape[1] - 1)
        state[happens] = (way % len(chain.passed))[happens]
        return np.asarray(happens & (way >= len(chain.passed)))

    counts = {name: np.zeros(trains, dtype=int) for name in ("drops", "vanished", "doubled")}
    everywhere = np.ones(trains, dtype=bool)
    for _ in range(packets):
        count = 1 + (random.random(trains) < duplicate)
        count -= loss_event(everywhere)
        copied = count > 1
        copy_lost = loss_event(copied)
        counts["drops"] += (count == 0) + copy_lost.astype(int)
        counts["vanished"] += count == 0
        counts["doubled"] += copied & ~copy_lost
    return counts


@pytest.mark.parametrize("loss", [FOUR, BURSTS, Loss(model="random", ratio=0.3)])
@pytest.mark.parametrize("duplicate", [0.0, 0.4])
def test_copies_throw_the_dice_again(loss: Loss, duplicate: float) -> None:
    """What is dropped, gone and doubled of 300 packets is as often in its 2 % interval as it should be."""
    found = enqueued(loss, duplicate, 300, 4000)
    for name, counts in found.items():
        chain = {"drops": chance.drops, "vanished": chance.vanished, "doubled": chance.doubled}[name](
            loss, duplicate
        )
        low, high = chance.interval(300, chain, 0.02)
        assert ((counts < low) | (counts > high)).mean() < 0.03, name
        assert low == high or ((counts <= low) | (counts >= high)).mean() > 0.01, name
        share = counts.mean() / 300
        assert chance.long_run(chain) == pytest.approx(share, rel=0.05, abs=1e-9), name


def test_all_lost_and_doubled_is_one_of_each() -> None:
    """Where everything is lost the doubled go on as one packet: netem's way."""
    assert chance.interval(1000, chance.vanished(Loss(model="random", ratio=1.0), 1.0)) == (0, 0)


def test_bursts_are_spread_as_wide_as_they_come() -> None:
    """Ten million packets in bursts of a thousand: 4.9 sigma to either side is inside, 7 is not."""
    p, r, steps = 1e-5, 1e-3, 10**7
    mean, sigma = steps * p / (p + r), (steps * 2 * p * r / (p + r) ** 3) ** 0.5
    low, high = chance.interval(steps, chance.losses(Loss(model="gilbert_elliott", p=p, r=r)))
    assert mean - 7 * sigma < low < mean - 4 * sigma
    assert mean + 4.9 * sigma < high < mean + 7 * sigma


def test_a_thousand_million_coins_are_spread_as_a_normal_distribution() -> None:
    """Beyond what a transform holds the interval is a tenth wider than 4.9 sigma, and no narrower."""
    steps, ratio = 10**9, 0.1
    sigma = (steps * ratio * (1 - ratio)) ** 0.5
    low, high = chance.interval(steps, chance.coin(ratio))
    assert (steps * ratio - low) / sigma == pytest.approx(5.4, abs=0.1)
    assert (high - steps * ratio) / sigma == pytest.approx(5.4, abs=0.1)


def test_chains_add_up() -> None:
    """Two coins of the same kind are one, few exactly and many within a Chernoff bound."""
    coin = chance.coin(0.01)
    assert chance.interval_of([(300, coin), (700, coin)]) == chance.interval(1000, coin)
    exact, bound = chance.interval(2000, coin), chance.interval_of([(20, coin)] * 100)
    assert bound[0] <= exact[0] < 20 < exact[1] <= bound[1] <= exact[1] + 4


def test_nothing_happens_in_no_step() -> None:
    """No steps, no counts."""
    assert chance.interval(0, chance.coin(0.5)) == (0, 0)
