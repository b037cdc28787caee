"""Distributions of prompt lengths: what the throughput model has to know of them.

Two kinds: counted from any list of lengths (`Lengths`), and the paper's truncated lognormal in closed form.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import erfc, exp, inf, log, nextafter, sqrt
from typing import Protocol

from agents.profiles import ComputeProfile


class Distribution(Protocol):
    """Prompt lengths L in tokens, at least 1."""

    def share(self, above_tokens: float, up_to_tokens: float) -> float:
        """P(above < L <= up_to); exactly 0 where there is no length."""

    def mean(self, above_tokens: float, up_to_tokens: float, power: float = 1.0) -> float:
        """E[L ** power | above < L <= up_to]; the share of that range must be above 0."""

    def offloaded_mean(self, above_tokens: float) -> float:
        """Mean tokens to compute, offloaded, of requests with L > above; there must be some."""


def mean_prefill_s(
    lengths: Distribution, profile: ComputeProfile, above_tokens: float = 0.0, up_to_tokens: float = inf
) -> float:
    """E[T(L) | above < L <= up_to], the mean prefill time in seconds: exact, as T is a power law in pieces.

    Raises:
        ValueError: there are no such lengths, or the profile does not cover all of them.
    """
    share = lengths.share(above_tokens, up_to_tokens)
    if not share:
        raise ValueError(f"no lengths above {above_tokens} and up to {up_to_tokens} tokens")
    if lengths.share(max(above_tokens, profile.max_tokens), up_to_tokens):
        raise ValueError(f"{profile.name}: there are lengths above its {profile.max_tokens} tokens")
    if lengths.share(above_tokens, min(up_to_tokens, nextafter(profile.min_tokens, 0.0))):
        raise ValueError(f"{profile.name}: there are lengths below its {profile.min_tokens} tokens")
    total_s = 0.0
    for law in profile.power_laws():
        above, up_to = max(above_tokens, law.above_tokens), min(up_to_tokens, law.up_to_tokens)
        part = lengths.share(above, up_to) if above < up_to else 0.0
        if part:
            total_s += part * law.factor_s * lengths.mean(above, up_to, law.exponent)
    return total_s / share


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of prompt lengths: `tokens` ascending, equally likely; `sums[k]` adds the first k.

    Build it with `from_quantiles`, or with `from_pairs` where what a request leaves to compute depends on the
    cluster: `offloaded_sums` adds what the same requests leave to the offloaded side. A threshold enters
    through k, the number of lengths that are not above it.
    """

    tokens: tuple[int, ...]
    sums: tuple[int, ...]
    offloaded_sums: tuple[int, ...]

    @classmethod
    def from_quantiles(cls, tokens: Sequence[int]) -> "Lengths":
        """From equally likely lengths in any order: quantiles of a formula, or every request of a trace.

        Raises:
            ValueError: there are none, or one is below 1.
        """
        ordered = tuple(sorted(tokens))
        if not ordered or ordered[0] < 1:
            raise ValueError("a length distribution needs at least one length, each of at least 1 token")
        sums = (0, *accumulate(ordered))
        return cls(ordered, sums, sums)

    @classmethod
    def from_pairs(cls, pairs: Sequence[tuple[int, int]]) -> "Lengths":
        """From equally likely requests: the length a threshold is held against, the length if offloaded.

        Raises:
            ValueError: there are none, or a length is below 1.
        """
        ordered = sorted(pairs)
        if not ordered or min(map(min, ordered)) < 1:
            raise ValueError("a length distribution needs at least one length, each of at least 1 token")
        local, offloaded = zip(*ordered, strict=True)
        return cls(local, (0, *accumulate(local)), (0, *accumulate(offloaded)))

    def count_short(self, threshold_tokens: float) -> int:
        """How many of the lengths are not above the threshold."""
        return bisect_right(self.tokens, threshold_tokens)

    def share_long(self, short: int) -> float:
        """P(L > t) where `short` lengths are not above t."""
        return 1.0 - short / len(self.tokens)

    def mean_long(self, short: int) -> float:
        """E[L | L > t] in tokens where `short` lengths are not above t, fewer than all."""
        return (self.sums[-1] - self.sums[short]) / (len(self.tokens) - short)

    def offloaded_mean_long(self, short: int) -> float:
        """Mean tokens to compute, offloaded, of requests above t where `short` lengths, not all, are not."""
        return (self.offloaded_sums[-1] - self.offloaded_sums[short]) / (len(self.tokens) - short)

    def offloaded_mean(self, above_tokens: float) -> float:
        """Mean tokens to compute, offloaded, of requests above a threshold; there must be some."""
        return self.offloaded_mean_long(self.count_short(above_tokens))

    def mean_short(self, short: int) -> float:
        """E[L | L <= t] in tokens where `short` lengths, at least one, are not above t."""
        return self.sums[short] / short

    def share(self, above_tokens: float, up_to_tokens: float) -> float:
        """P(above < L <= up_to)."""
        return max(self.count_short(up_to_tokens) - self.count_short(above_tokens), 0) / len(self.tokens)

    def mean(self, above_tokens: float, up_to_tokens: float, power: float = 1.0) -> float:
        """E[L ** power | above < L <= up_to], a plain mean."""
        low, high = self.count_short(above_tokens), self.count_short(up_to_tokens)
        if power == 1.0:
            return (self.sums[high] - self.sums[low]) / (high - low)
        total: float = sum(tokens**power for tokens in self.tokens[low:high])
        return total / (high - low)


@dataclass(frozen=True, slots=True)
class TruncatedLognormal:
    """The paper's distribution of lengths: exp of a normal(mu, sigma), given low < L <= high, in tokens.

    Continuous: requests have whole tokens, which moves no mean by more than half a token.

    Raises:
        ValueError: sigma is not above 0, the bounds are not 1 <= low < high, or nothing lies between them.
    """

    mu: float
    sigma: float
    low_tokens: float
    high_tokens: float

    def __post_init__(self) -> None:
        """Refuse what is no distribution."""
        bounds = self.sigma > 0 and 1 <= self.low_tokens < self.high_tokens
        if not bounds or not self._mass(0.0, inf, 0.0):
            raise ValueError(
                f"no lognormal of mu {self.mu}, sigma {self.sigma} "
                f"between {self.low_tokens} and {self.high_tokens} tokens"
            )

    def share(self, above_tokens: float, up_to_tokens: float) -> float:
        """P(above < L <= up_to)."""
        return self._mass(above_tokens, up_to_tokens, 0.0) / self._mass(0.0, inf, 0.0)

    def mean(self, above_tokens: float, up_to_tokens: float, power: float = 1.0) -> float:
        """E[L ** power | above < L <= up_to]: L weighted by its power is lognormal again, its mu moved."""
        growth = exp(power * self.mu + (power * self.sigma) ** 2 / 2)
        mean = growth * self._mass(above_tokens, up_to_tokens, power)
        mean /= self._mass(above_tokens, up_to_tokens, 0.0)
        # Rounding in a narrow range must not lead outside it: a profile ends at the longest length.
        ends: tuple[float, float] = (
            self._clipped(above_tokens) ** power,
            self._clipped(up_to_tokens) ** power,
        )
        return min(max(mean, min(ends)), max(ends))

    def offloaded_mean(self, above_tokens: float) -> float:
        """As `mean`: nothing is cached."""
        return self.mean(above_tokens, inf)

    def _clipped(self, tokens: float) -> float:
        return min(max(tokens, self.low_tokens), self.high_tokens)

    def _mass(self, above_tokens: float, up_to_tokens: float, power: float) -> float:
        """The part of a normal distribution between two lengths, its mean moved by power * sigma^2."""
        mean = self.mu + power * self.sigma**2
        low, high = (
            (log(self._clipped(tokens)) - mean) / (self.sigma * sqrt(2))
            for tokens in (above_tokens, up_to_tokens)
        )
        if low >= high:
            return 0.0
        # Where both ends lie above the mean, the difference of the upper tails loses no digits.
        return (erfc(low) - erfc(high)) / 2 if low > 0 else (erfc(-high) - erfc(-low)) / 2
