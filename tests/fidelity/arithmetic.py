"""What must come out: limits, intervals and tests, each by its textbook formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

ETHERNET_BYTES, IPV4_BYTES, TCP_BYTES, TIMESTAMP_BYTES = 14, 20, 20, 12
CUBIC_C, CUBIC_BETA = 0.4, 0.7
CONFIDENCE = 0.99
SIGMAS = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
"""How many standard deviations to either side hold CONFIDENCE of a normal distribution."""

Floats = npt.NDArray[np.float64]


def payload_share(mtu_bytes: int) -> float:
    """Share of TCP payload in what the rate stage counts: whole packets, timestamps (RFC 7323), Ethernet."""
    return (mtu_bytes - IPV4_BYTES - TCP_BYTES - TIMESTAMP_BYTES) / (mtu_bytes + ETHERNET_BYTES)


def binomial_interval(trials: int, ratio: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """Fewest and most events that a fair dice gives, each tail with (1 - confidence) / 2 at most. Exact."""
    reach = 12 * math.sqrt(trials * ratio * (1 - ratio)) + 12
    first = max(0, math.floor(trials * ratio - reach))
    counts = range(first, min(trials, math.ceil(trials * ratio + reach)) + 1)
    rest = math.lgamma(trials + 1)
    logs = [
        rest
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(ratio)
        + (trials - k) * math.log1p(-ratio)
        for k in counts
    ]
    weights = np.exp(np.array(logs))
    tail = (1 - confidence) / 2
    low = int(np.searchsorted(np.cumsum(weights), tail, side="right"))
    high = len(weights) - 1 - int(np.searchsorted(np.cumsum(weights[::-1]), tail, side="right"))
    return first + low, first + high


def kolmogorov_smirnov(
    samples: Sequence[float], ordered: npt.NDArray[Any], late: float = 0
) -> tuple[float, float]:
    """Distance D between samples and a distribution of equally likely values (sorted), and its p-value.

    `late`: each sample may have been read so much too late (0: none was). p by Kolmogorov's series with
    Stephens' correction for n (Numerical Recipes, 3rd edition, 14.3.3). Where the distribution has steps, p
    is too large; those of a table are a 4096th.
    """
    found = np.sort(np.asarray(samples, dtype=np.float64))
    count = len(found)
    at_or_below = np.searchsorted(ordered, found, side="right") / len(ordered)
    below = np.searchsorted(ordered, found - late, side="left") / len(ordered)
    steps = np.arange(count + 1) / count
    distance = float(max(np.max(steps[1:] - at_or_below), np.max(below - steps[:-1]), 0.0))
    scaled = (math.sqrt(count) + 0.12 + 0.11 / math.sqrt(count)) * distance
    if scaled < 0.2:  # the series does not converge there; p is 1 to twelve digits
        return distance, 1.0
    series = sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return distance, min(1.0, max(0.0, 2 * series))


class Losses:
    """A Markov chain in which some states lose a packet: the share lost and how far a count may be off."""

    def __init__(self, transitions: Sequence[Sequence[float]], lost: Sequence[float]) -> None:
        """`transitions`: rows sum to 1. `lost`: probability that a packet in this state is lost."""
        self.transitions = np.array(transitions, dtype=np.float64)
        self.lost = np.array(lost, dtype=np.float64)
        size = len(self.lost)
        equations = np.vstack([self.transitions.T - np.eye(size), np.ones(size)])
        self.shares: Floats = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0]

    @property
    def ratio(self) -> float:
        """Share of packets lost in the long run."""
        return float(self.shares @ self.lost)

    def burst_interval(self, bursts: int) -> tuple[float, float]:
        """CONFIDENCE of the mean length of so many runs of losses, for states that lose all or nothing.

        The time to leave a set of states (Kemeny and Snell, 3.5), by its fundamental matrix.
        """
        lossy = self.lost == 1
        entry = (self.shares[~lossy] @ self.transitions[np.ix_(~lossy, lossy)]).ravel()
        entry /= entry.sum()
        stay = np.linalg.inv(np.eye(len(entry)) - self.transitions[np.ix_(lossy, lossy)])
        lengths = stay.sum(axis=1)
        mean = float(entry @ lengths)
        square = float(entry @ ((2 * stay - np.eye(len(entry))) @ lengths))
        reach = SIGMAS * math.sqrt((square - mean**2) / bursts)
        return mean - reach, mean + reach

    def interval(self, packets: int) -> tuple[int, int]:
        """CONFIDENCE of all counts of losses in so many packets, by the chain's central limit theorem.

        The variance is that of a function of a Markov chain (Kemeny and Snell, Finite Markov Chains, 4.6),
        by the fundamental matrix, and that of the dice within a state.
        """
        size = len(self.lost)
        away = self.lost - self.ratio
        fundamental = np.linalg.inv(np.eye(size) - self.transitions + np.outer(np.ones(size), self.shares))
        variance = float(self.shares @ (2 * away * (fundamental @ away) - away**2))
        variance += float(self.shares @ (self.lost * (1 - self.lost)))
        reach = SIGMAS * math.sqrt(variance * packets)
        return math.ceil(packets * self.ratio - reach), math.floor(packets * self.ratio + reach)


def gilbert_elliott(p: float, r: float, bad: float, good: float = 0.0) -> Losses:
    """Good and bad state (Elliott 1963)."""
    return Losses([[1 - p, p], [r, 1 - r]], [good, bad])


def four_state(p13: float, p31: float, p32: float, p23: float, p14: float) -> Losses:
    """Salsano et al., "Definition of a general and intuitive loss model": states 3 and 4 lose."""
    return Losses(
        [
            [1 - p13 - p14, 0, p13, p14],
            [0, 1 - p23, p23, 0],
            [p31, p32, 1 - p31 - p32, 0],
            [1, 0, 0, 0],
        ],
        [0, 0, 1, 1],
    )


def cubic_window(ratio: float, rtt_s: float) -> float:
    """Average window (packets) of one flow under random loss.

    RFC 9438, figures 5 and 6 (the larger of CUBIC's own and the Reno-friendly window): with
    alpha = 3 (1 - beta) / (1 + beta), Reno-friendly growth gives the window of Reno, sqrt(3 / 2p).
    """
    own = (CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25 * (rtt_s / ratio) ** 0.75
    return float(max(own, math.sqrt(1.5 / ratio)))
