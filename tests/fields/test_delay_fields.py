"""Delay, jitter, order, copies, damage, slots and the limit against arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from testbed.shaping.distributions import cdf, deviations, table

Results = dict[str, Any]
GRAIN_NS = 1_000
"""A reading of the clock, a timer of the kernel and the way through four namespaces."""
DOUBT = 1e-4
"""The share of correct links that a test may refuse; with the guest's fixed seed it always says the same."""


def spread(count: int, share: float) -> float:
    """How far a binomial number may be off its mean (99.99 %)."""
    return 3.89 * math.sqrt(count * share * (1 - share)) + 0.5


@pytest.mark.parametrize("number", range(3), ids=["50 us", "5 ms", "85 ms"])
def test_a_datagram_takes_the_delay(delay: Results, number: int) -> None:
    """On an idle link every datagram takes the delay, to a microsecond."""
    train = delay["delays"]["trains"][number]
    assert len(train["delays_ns"]) == train["sent"] == 20
    assert min(train["delays_ns"]) >= train["delay_ns"]
    assert max(train["delays_ns"]) < train["delay_ns"] + GRAIN_NS


def farthest(delays_ns: list[int], delay_ns: int, name: str, jitter_ns: int) -> float:
    """Kolmogorov's and Smirnov's distance between measured delays and netem's table.

    Each measured delay is late by less than GRAIN_NS, so it counts as both.
    """
    count, curve = len(delays_ns), table(name)
    found = 0.0
    for number, one in enumerate(sorted(delays_ns)):
        high = cdf(curve, jitter_ns, one - delay_ns)
        low = cdf(curve, jitter_ns, one - delay_ns - GRAIN_NS)
        found = max(found, low - (number + 1) / count, number / count - high)
    return found


def test_delays_have_their_distribution(delay: Results) -> None:
    """Each distribution passes the KS test against its own table and fails it against all others."""
    limit = math.sqrt(-math.log(DOUBT / 2) / 2 / 1_000)
    found = delay["distributions"]
    curves = {(train["distribution"], train["jitter_ns"]) for train in found["trains"].values()}
    assert len(curves) == 4
    for train in found["trains"].values():
        own = (train["distribution"], train["jitter_ns"])
        for name, jitter_ns in curves:
            distance = farthest(train["delays_ns"], found["delay_ns"], name, jitter_ns)
            assert (distance < limit) == ((name, jitter_ns) == own), (own, name, jitter_ns, distance)


def standing_ns(curve: bytes, jitter_ns: int, spacing_ns: int) -> float:
    """Mean of the running maximum of (moment sent + deviation drawn) over the moment sent.

    P(all that were sent k spacings before, and this one, are out by x) = product of F(x + k spacing); the
    mean is the sum of 1 - P over x from the lowest on.
    """
    steps = np.sort(deviations(curve, jitter_ns))
    low, high = int(steps[0]), int(steps[-1])
    grid = np.arange(low, high, 1_000)
    product = np.ones(len(grid))
    for back in range((high - low) // spacing_ns + 1):
        product *= np.searchsorted(steps, grid + back * spacing_ns, side="right") / len(steps)
    return low + float(np.sum(1 - product)) * 1_000


def test_ordered_jitter_is_a_standing_delay(delay: Results) -> None:
    """At 0, 50 and 95 % load the mean is that of the running maximum, within 5 % of the jitter; in order."""
    found = delay["standing_delay"]
    means = []
    for train in found["trains"]:
        assert train["numbers"] == list(range(train["sent"]))
        model_ns = standing_ns(table("uniform"), found["jitter_ns"], train["spacing_ns"])
        means.append(fmean(train["delays_ns"]) - found["delay_ns"])
        assert means[-1] == pytest.approx(model_ns, abs=0.05 * found["jitter_ns"])
    assert means[2] > means[1] > means[0] + 0.05 * found["jitter_ns"]


def test_a_new_delay_holds_for_those_that_come(delay: Results) -> None:
    """Those on their way keep their moment, those behind have the new delay, and nobody overtakes."""
    for steps in delay["delay_steps"].values():
        before_ns, after_ns, step_ns = steps["before_ns"], steps["after_ns"], steps["step_ns"]
        assert steps["numbers"] == list(range(steps["sent"]))
        last_ns = max(
            end
            for end, took in zip(steps["arrivals_ns"], steps["delays_ns"], strict=True)
            if end - took < step_ns
        )
        for end_ns, took_ns in zip(steps["arrivals_ns"], steps["delays_ns"], strict=True):
            sent_ns = end_ns - took_ns
            expected_ns = before_ns if sent_ns < step_ns else max(after_ns, last_ns - sent_ns)
            assert took_ns == pytest.approx(expected_ns, abs=2 * GRAIN_NS)


def test_reordered_doubled_and_damaged_are_their_shares(delay: Results) -> None:
    """Shares at two ratios each within the 99.99 % binomial interval; a reordered one skips the delay."""
    found = delay["shares"]
    for train in found["trains"]:
        sent, ratio, copies = train["sent"], train["ratio"], Counter(train["numbers"])
        early = sum(one < found["delay_ns"] / 2 for one in train["delays_ns"])
        doubled = sum(count == 2 for count in copies.values())
        missing = sent - len(copies)
        # a bit of the sender's Ethernet address is one that nobody looks at
        noticed = 1 - 6 / found["frame_bytes"]
        expected = {"reorder": (ratio, 0, 0), "duplicate": (0, ratio, 0), "corrupt": (0, 0, ratio * noticed)}
        for events, share in zip((early, doubled, missing), expected[train["field"]], strict=True):
            assert events == pytest.approx(sent * share, abs=spread(sent, share) if share else 0)
        assert (train["numbers"] == sorted(train["numbers"])) == (train["field"] != "reorder")


def bunches(arrivals_ns: list[int]) -> tuple[list[int], list[int]]:
    """Pauses between arrivals that are not at once, and the sizes of the bunches between them."""
    pauses, sizes = [], [1]
    for one, other in pairwise(arrivals_ns):
        if other - one > 50_000:
            pauses.append(other - one)
            sizes.append(1)
        else:
            sizes[-1] += 1
    return pauses, sizes


@pytest.mark.parametrize("number", range(5), ids=["slot", "min", "max", "packets", "size"])
def test_slots_pause_and_let_bunches_through(delay: Results, number: int) -> None:
    """Pauses are uniform in [min, max]; a bunch has all that is due, or as much as may go."""
    train = delay["slots"]["trains"][number]
    pauses, sizes = bunches(train["arrivals_ns"])
    low, high = train["min_ns"], train["max_ns"]
    assert low <= min(pauses)
    assert max(pauses) < high + GRAIN_NS
    sigma = (high - low) / math.sqrt(12 * len(pauses))
    assert fmean(pauses) == pytest.approx((low + high) / 2, abs=4 * sigma)
    assert train["numbers"] == list(range(train["sent"]))
    frame_bytes = delay["slots"]["frame_bytes"]
    allowed = train["packets"] or train["size_bytes"] // frame_bytes
    if allowed:  # the queue never runs dry
        assert set(sizes[1:-1]) == {allowed}
    else:
        assert max(sizes) > 20


def test_a_forced_limit_drops_the_rest(delay: Results) -> None:
    """Of a burst of 1000 as many arrive as the limit says, the first ones; all of them without one."""
    for train in delay["limits"]["trains"]:
        assert train["numbers"] == list(range(train["limit"] or 1_000))
