"""The yardsticks themselves, against known values."""

from __future__ import annotations

import math
import random
from itertools import groupby
from statistics import fmean

import numpy as np
import pytest

from testbed.shaping import distributions
from tests.fidelity import arithmetic, rows


def test_the_payload_share_is_that_of_the_headers() -> None:
    """MTU 9000: 8948 of 9014 bytes; MTU 1500: 1448 of 1514."""
    assert arithmetic.payload_share(9000) == 8948 / 9014
    assert arithmetic.payload_share(1500) == 1448 / 1514


@pytest.mark.parametrize(("trials", "ratio"), [(10, 0.5), (1000, 0.01), (50, 0.9)])
def test_the_binomial_interval_is_exact(trials: int, ratio: float) -> None:
    """Each tail outside it has at most half a percent; one count wider on the inside would have more."""

    def below(count: int) -> float:
        return sum(math.comb(trials, k) * ratio**k * (1 - ratio) ** (trials - k) for k in range(count))

    low, high = arithmetic.binomial_interval(trials, ratio)
    assert below(low) <= 0.005 < below(low + 1)
    assert 1 - below(high + 1) <= 0.005 < 1 - below(high)


def test_kolmogorov_smirnov_knows_the_table_from_another() -> None:
    """Draws from a table pass; the same draws fail against another one, and when they are late."""
    dice = random.Random(3)
    normal = distributions.deviations(distributions.table("normal"), 500_000)
    uniform = distributions.deviations(distributions.table("uniform"), 500_000)
    draws = [int(dice.choice(normal)) for _ in range(2000)]
    assert arithmetic.kolmogorov_smirnov(draws, normal)[1] > 0.01
    assert arithmetic.kolmogorov_smirnov(draws, uniform)[1] < 1e-6
    assert arithmetic.kolmogorov_smirnov([one + 100_000 for one in draws], normal)[1] < 1e-6


def test_kolmogorov_smirnov_has_its_published_quantiles() -> None:
    """D sqrt(n) of 1.358 and 1.628 are 5 % and 1 % for large n (Smirnov's table)."""
    count = 10_000
    for quantile, p in ((1.358, 0.05), (1.628, 0.01)):
        # a sample moved by D against equally spaced values has just that distance
        distance = quantile / math.sqrt(count)
        samples = (np.arange(count) + 0.5) / count + distance
        values = (np.arange(count) + 0.5) / count
        assert arithmetic.kolmogorov_smirnov(list(samples), values)[1] == pytest.approx(p, rel=0.05)


def test_lateness_within_the_slack_does_not_count() -> None:
    """Values in a few steps, each read a microsecond late, pass with that slack and fail without."""
    steps = np.repeat([1e6, 2e6, 3e6], 1000)
    samples = [one + 1000 for one in steps]
    assert arithmetic.kolmogorov_smirnov(samples, steps, late=2000)[1] > 0.99
    assert arithmetic.kolmogorov_smirnov([one - 1000 for one in steps], steps, late=2000)[1] < 1e-6


@pytest.mark.parametrize(
    "chain",
    [
        arithmetic.gilbert_elliott(0.02, 0.2, 1.0),
        arithmetic.four_state(0.01, 0.3, 0.1, 0.5, 0.005),
    ],
    ids=["gilbert_elliott", "four_state"],
)
def test_a_chain_of_losses_is_where_a_simulation_is(chain: arithmetic.Losses) -> None:
    """Share, spread of the count and length of bursts agree with many simulated runs."""
    dice, counts, lengths = np.random.default_rng(2), [], []
    steps, runs = 5000, 300
    cumulative = np.cumsum(chain.transitions, axis=1)
    state = dice.choice(len(chain.shares), size=runs, p=chain.shares / chain.shares.sum())
    lost = np.empty((steps, runs), dtype=bool)
    for step in range(steps):
        state = (dice.random(runs)[:, None] > cumulative[state]).sum(axis=1)
        lost[step] = chain.lost[state] == 1
    counts = lost.sum(axis=0)
    for run in lost.T:
        lengths += [len(list(group)) for value, group in groupby(run) if value]
    low, high = chain.interval(steps)
    assert counts.mean() == pytest.approx(steps * chain.ratio, rel=0.02)
    assert np.mean((counts >= low) & (counts <= high)) == pytest.approx(0.99, abs=0.02)
    shortest, longest = chain.burst_interval(len(lengths))
    assert shortest <= fmean(lengths) <= longest


@pytest.mark.parametrize(
    ("ratio", "window"), [(1e-2, 12), (1e-3, 38), (1e-4, 187), (1e-5, 1054), (1e-6, 5926), (1e-7, 33325)]
)
def test_the_cubic_window_is_the_published_one(ratio: float, window: int) -> None:
    """RFC 8312, table 1, C = 0.4, RTT 100 ms (the formula of RFC 9438); it has 1.2 for the root of 1.5."""
    assert arithmetic.cubic_window(ratio, 0.1) == pytest.approx(window, rel=0.03)


def test_a_row_off_its_mark_is_not_ok() -> None:
    """The same cell, once as it should be, once 2 % slower, once with a queue that may have run dry."""
    cell = {
        "rate_bps": 10**10,
        "rtt_ms": 2,
        "mtu_bytes": 9000,
        "flows": 4,
        "payload_bytes": 124_084_757,
        "span_s": 0.1,
        "drops": 0,
        "least_backlog_bytes": 6_000_000,
        "longest_gap_s": 0.003,
    }
    slow, dry = cell | {"payload_bytes": 121_600_000}, cell | {"least_backlog_bytes": 3_000_000}
    assert [row.ok for row in rows.goodput({"cells": [cell, slow, dry]})] == [True, False, False]
