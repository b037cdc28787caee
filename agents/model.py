"""The paper's throughput model (arXiv 2604.15039) over an empirical distribution of lengths.

    theta_prfaas = min(N_prfaas / T_prefill(l_long), B_out / S_kv(l_long))
    theta_p      = N_p / T_prefill(l_short)
    theta_d      = N_d * BS_max / (T_decode * L_out)
    lambda_max   = min(theta_prfaas / p, theta_p / (1 - p), theta_d)

with p = P(L > t), l_long = E[L | L > t], l_short = E[L | L <= t] for a threshold of t tokens. As in the
paper, theta takes the prefill time of the mean length, T(E[L]), not the mean of T(L); the true capacity is a
little lower.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, log

from agents.profiles import ComputeProfile, ModelProfile

STEP_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of prompt lengths: `tokens` ascending, equally likely; `sums[k]` adds the first k.

    Build it with `from_quantiles`. A threshold enters through k, the number of lengths that are not above it.
    """

    tokens: tuple[int, ...]
    sums: tuple[int, ...]

    @classmethod
    def from_quantiles(cls, tokens: Sequence[int]) -> "Lengths":
        """From equally likely lengths in any order: quantiles of a formula, or every request of a trace.

        Raises:
            ValueError: there are none, or one is below 1.
        """
        ordered = tuple(sorted(tokens))
        if not ordered or ordered[0] < 1:
            raise ValueError("a length distribution needs at least one length, each of at least 1 token")
        return cls(ordered, (0, *accumulate(ordered)))

    def count_short(self, threshold_tokens: float) -> int:
        """How many of the lengths are not above the threshold."""
        return bisect_right(self.tokens, threshold_tokens)

    def share_long(self, short: int) -> float:
        """P(L > t) where `short` lengths are not above t."""
        return 1.0 - short / len(self.tokens)

    def mean_long(self, short: int) -> float:
        """E[L | L > t] in tokens where `short` lengths are not above t, fewer than all."""
        return (self.sums[-1] - self.sums[short]) / (len(self.tokens) - short)

    def mean_short(self, short: int) -> float:
        """E[L | L <= t] in tokens where `short` lengths, at least one, are not above t."""
        return self.sums[short] / short


@dataclass(frozen=True, slots=True)
class System:
    """The two clusters: hardware, model and instance counts; `scale` multiplies every KV byte."""

    prfaas: ComputeProfile
    pd: ComputeProfile
    model: ModelProfile
    n_prfaas: int
    n_p: int
    n_d: int
    output_tokens: int
    scale: float = 1.0

    def kv_bits(self, mean_tokens: float) -> float:
        """Mean KV cache, in bits, of requests with a mean length of `mean_tokens` (S_kv is linear)."""
        return 8 * self.scale * (self.model.bytes_per_token * mean_tokens + self.model.fixed_bytes)


@dataclass(frozen=True, slots=True)
class Load:
    """Work already waiting that new requests have to share the capacity with, per second.

    `prfaas`, `pd`: requests per second of each prefill side; `egress_bps`: bits per second of the link.
    """

    prfaas: float = 0.0
    pd: float = 0.0
    egress_bps: float = 0.0


IDLE = Load()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the system sustains at one threshold: requests per second, shares, and the egress that this takes.

    The thetas are in requests per second of their own kind; a side that gets no requests has an infinite one.
    """

    threshold_tokens: int
    theta_prfaas: float
    theta_p: float
    theta_d: float
    share_long: float
    mean_long_tokens: float
    lambda_max: float
    egress_bps: float


def _theta_prfaas(
    system: System, lengths: Lengths, short: int, egress_bps: float | None, load: Load
) -> float:
    """Requests per second that the offloaded side takes (compute and link); infinite when it gets none."""
    if short == len(lengths.tokens):
        return inf
    mean_long = lengths.mean_long(short)
    compute = system.n_prfaas / system.prfaas.prefill_s(mean_long) - load.prfaas
    if egress_bps is None:
        return max(compute, 0.0)
    return max(min(compute, (egress_bps - load.egress_bps) / system.kv_bits(mean_long)), 0.0)


def _theta_p(system: System, lengths: Lengths, short: int, load: Load) -> float:
    """Requests per second that prefill in the PD cluster takes; infinite when it gets none."""
    if short == 0:
        return inf
    return max(system.n_p / system.pd.prefill_s(lengths.mean_short(short)) - load.pd, 0.0)


def _theta_d(system: System) -> float:
    """Requests per second that the decode instances take."""
    batch = system.pd.bs_max
    return system.n_d * batch / (system.pd.step_s(batch) * system.output_tokens)


def capacity(system: System, lengths: Lengths, threshold_tokens: int, egress_bps: float | None) -> Capacity:
    """What `system` sustains at a threshold; `egress_bps` None is a link that never binds.

    Raises:
        ValueError: the profiles do not cover the lengths.
    """
    short = lengths.count_short(threshold_tokens)
    share_long = lengths.share_long(short)
    theta_prfaas = _theta_prfaas(system, lengths, short, egress_bps, IDLE)
    theta_p = _theta_p(system, lengths, short, IDLE)
    theta_d = _theta_d(system)
    lambda_max = min(
        theta_prfaas / share_long if share_long else inf,
        theta_p / (1.0 - share_long) if short else inf,
        theta_d,
    )
    mean_long = lengths.mean_long(short) if share_long else 0.0
    egress = lambda_max * share_long * system.kv_bits(mean_long) if share_long else 0.0
    return Capacity(
        threshold_tokens, theta_prfaas, theta_p, theta_d, share_long, mean_long, lambda_max, egress
    )


def best_threshold(system: System, lengths: Lengths, egress_bps: float | None, load: Load = IDLE) -> int:
    """The threshold with the highest lambda_max, to 100 tokens; `load` is taken off the capacity first.

    A higher threshold relieves the offloaded side and burdens the other, so the best one is where the two
    meet, found by bisection over the lengths and interpolated between two of them (a plateau where decode
    limits contains that point). 0 offloads everything; the longest prompt of the PD profile offloads nothing.

    Raises:
        ValueError: the profiles do not cover the lengths.
    """

    def relief(short: int) -> float:
        """Logarithm of the offloaded side's headroom over the other's; below 0 where it limits."""
        offloaded = _theta_prfaas(system, lengths, short, egress_bps, load)
        local = _theta_p(system, lengths, short, load)
        if offloaded == 0.0:
            return -inf
        if local == 0.0:
            return inf
        return log(offloaded / local * short / (len(lengths.tokens) - short))

    low, high = (
        0,
        len(lengths.tokens),
    )  # relief(low) < 0 < relief(high): at either end one side gets no requests
    relief_low, relief_high = -inf, inf
    while high - low > 1:
        middle = (low + high) // 2
        value = relief(middle)
        if value < 0:
            low, relief_low = middle, value
        else:
            high, relief_high = middle, value
    tokens_low, tokens_high = _boundary(system, lengths, low), _boundary(system, lengths, high)
    if relief_high == inf and high < len(lengths.tokens):
        exact = tokens_low  # one more request there is one too many
    elif relief_low == -inf or relief_high == inf:
        exact = tokens_high
    else:
        exact = tokens_low + (tokens_high - tokens_low) * relief_low / (relief_low - relief_high)
    return min(round(exact / STEP_TOKENS) * STEP_TOKENS, system.pd.max_tokens)


def _boundary(system: System, lengths: Lengths, short: int) -> float:
    """The threshold, in tokens, that separates the `short` shortest lengths from the rest."""
    if short == 0:
        return 0.0
    if short == len(lengths.tokens):
        return float(system.pd.max_tokens)
    return (lengths.tokens[short - 1] + lengths.tokens[short]) / 2
