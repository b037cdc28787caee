"""The paper's throughput model (arXiv 2604.15039) over a distribution of lengths.

    theta_prfaas = min(N_prfaas / T_prefill(l_long), B_out / S_kv(l_long))
    theta_p      = N_p / T_prefill(l_short)
    theta_d      = N_d * BS_max / (T_decode * L_out)
    lambda_max   = min(theta_prfaas / p, theta_p / (1 - p), theta_d)

with p = P(L > t), l_long = E[L | L > t], l_short = E[L | L <= t] for a threshold of t tokens. As in the
paper, theta takes the prefill time of the mean length, T(E[L]), unless asked for the mean of the times,
E[T(L)]. The latter is what a system sustains: up to 5 % less in table 6, for above 8K tokens time grows
faster than length.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf, log
from typing import Literal

from agents.lengths import Distribution, Lengths, mean_prefill_s
from agents.profiles import Compression, ComputeProfile, ModelProfile

__all__ = [
    "Allocation",
    "Capacity",
    "Convention",
    "Lengths",
    "Load",
    "System",
    "at_best",
    "best_allocation",
    "best_threshold",
    "capacity",
    "cluster_egress_bps",
]

STEP_TOKENS = 100

Convention = Literal["time_of_mean", "mean_of_times"]
"""Prefill time of a class of requests: T(E[L]) as in the paper, or the true mean E[T(L)]."""


@dataclass(frozen=True, slots=True)
class System:
    """The two clusters: hardware, model and instance counts; `scale` multiplies every KV byte.

    `compression` is what KV cache may be shrunk by on its way, None where it is not.
    """

    prfaas: ComputeProfile
    pd: ComputeProfile
    model: ModelProfile
    n_prfaas: int
    n_p: int
    n_d: int
    output_tokens: int
    scale: float = 1.0
    compression: Compression | None = None

    def kv_bits(self, mean_tokens: float) -> float:
        """Mean KV cache, in bits, of requests with a mean length of `mean_tokens` (S_kv is linear).

        It counts windows as full, so it is exact where no request is shorter than a window.
        """
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


@dataclass(frozen=True, slots=True)
class Allocation:
    """The best threshold and split of the PD cluster, and the requests per second that they sustain."""

    threshold_tokens: int
    n_p: int
    n_d: int
    lambda_max: float


def _theta_prfaas(
    system: System, prefill_s: float, mean_tokens: float, egress_bps: float | None, load: Load
) -> float:
    """Requests per second that the offloaded side takes, by compute and by link."""
    compute = system.n_prfaas / prefill_s - load.prfaas
    if egress_bps is None:
        return max(compute, 0.0)
    return max(min(compute, (egress_bps - load.egress_bps) / system.kv_bits(mean_tokens)), 0.0)


def _theta_p(system: System, prefill_s: float, load: Load) -> float:
    """Requests per second that prefill in the PD cluster takes."""
    return max(system.n_p / prefill_s - load.pd, 0.0)


def _theta_d(system: System, lengths: Distribution) -> float:
    """Requests per second that the decode instances take, their batches full and half of each answer there.

    Where contexts matter, those outside the profile count as its shortest or longest: with a cache `lengths`
    are what it leaves, less than what a request holds.
    """
    batch, (least, most) = system.pd.bs_max, system.pd.contexts
    context_tokens = min(max(lengths.mean(0.0, inf) + system.output_tokens / 2, least), most)
    return system.n_d * batch / (system.pd.step_s(batch, context_tokens) * system.output_tokens)


def capacity(
    system: System,
    lengths: Distribution,
    threshold_tokens: int,
    egress_bps: float | None,
    convention: Convention = "time_of_mean",
) -> Capacity:
    """What `system` sustains at a threshold; `egress_bps` None is a link that never binds.

    The mean of times takes every length as it is, whatever a cache leaves to the offloaded side.

    Raises:
        ValueError: the profiles do not cover the lengths.
    """

    def long_s() -> float:
        if convention == "time_of_mean":
            return system.prfaas.prefill_s(lengths.offloaded_mean(threshold_tokens))
        return mean_prefill_s(lengths, system.prfaas, threshold_tokens, inf)

    def short_s() -> float:
        if convention == "time_of_mean":
            return system.pd.prefill_s(lengths.mean(0.0, threshold_tokens))
        return mean_prefill_s(lengths, system.pd, 0.0, threshold_tokens)

    share_long = lengths.share(threshold_tokens, inf)
    share_short = lengths.share(0.0, threshold_tokens)
    theta_prfaas = theta_p = inf
    mean_long = egress = 0.0
    if share_long:
        mean_long = lengths.mean(threshold_tokens, inf)
        theta_prfaas = _theta_prfaas(system, long_s(), mean_long, egress_bps, IDLE)
    if share_short:
        theta_p = _theta_p(system, short_s(), IDLE)
    theta_d = _theta_d(system, lengths)
    lambda_max = min(
        theta_prfaas / share_long if share_long else inf,
        theta_p / share_short if share_short else inf,
        theta_d,
    )
    if share_long:
        egress = lambda_max * share_long * system.kv_bits(mean_long)
    return Capacity(
        threshold_tokens, theta_prfaas, theta_p, theta_d, share_long, mean_long, lambda_max, egress
    )


def best_threshold(
    system: System,
    lengths: Lengths,
    egress_bps: float | None,
    load: Load = IDLE,
    convention: Convention = "time_of_mean",
) -> int:
    """The threshold with the highest lambda_max, to 100 tokens; `load` is taken off the capacity first.

    A higher threshold relieves the offloaded side and burdens the other, so the best one is where the two
    meet, found by bisection over the lengths and interpolated between two of them (a plateau where decode
    limits contains that point). 0 offloads everything; the longest prompt of the PD profile offloads nothing.

    Raises:
        ValueError: the profiles do not cover the lengths.
    """
    long_s, short_s = _prefill_times(system, lengths, convention)

    def relief(short: int) -> float:
        """Logarithm of the offloaded side's headroom over the other's; below 0 where it limits."""
        offloaded = _theta_prfaas(system, long_s(short), lengths.mean_long(short), egress_bps, load)
        local = _theta_p(system, short_s(short), load)
        if offloaded == 0.0:
            return -inf
        if local == 0.0:
            return inf
        return log(offloaded / local * short / (len(lengths.tokens) - short))

    def sustained(short: int) -> float:
        """Requests per second where so many lengths stay, but for decode."""
        long = len(lengths.tokens) - short
        offloaded = (
            _theta_prfaas(system, long_s(short), lengths.mean_long(short), egress_bps, load) / long
            if long
            else inf
        )
        return min(offloaded, _theta_p(system, short_s(short), load) / short if short else inf)

    # relief(low) < 0 < relief(high): at either end one side gets no requests
    low, high = 0, len(lengths.tokens)
    relief_low, relief_high = -inf, inf
    while high - low > 1:
        middle = (low + high) // 2
        value = relief(middle)
        if value < 0:
            low, relief_low = middle, value
        else:
            high, relief_high = middle, value
    first, last = bisect_left(lengths.tokens, lengths.tokens[low]), lengths.count_short(lengths.tokens[low])
    if last - first > 1:
        return _beside(system, lengths, first, last, sustained)
    tokens_low, tokens_high = _boundary(system, lengths, low), _boundary(system, lengths, high)
    if relief_high == inf and high < len(lengths.tokens):
        exact = tokens_low  # one more request there is one too many
    elif relief_low == -inf or relief_high == inf:
        exact = tokens_high
    else:
        exact = tokens_low + (tokens_high - tokens_low) * relief_low / (relief_low - relief_high)
    return min(round(exact / STEP_TOKENS) * STEP_TOKENS, system.pd.max_tokens)


def _beside(
    system: System, lengths: Lengths, first: int, last: int, sustained: Callable[[int], float]
) -> int:
    """The better threshold below or at a length that many requests have, numbers `first` up to `last`.

    No threshold divides them, and none may end up on the other side by rounding.
    """
    tokens = lengths.tokens[first]
    if sustained(first) > sustained(last):
        least = lengths.tokens[first - 1] if first else 0
        rounded = round(_boundary(system, lengths, first) / STEP_TOKENS) * STEP_TOKENS
        return min(max(rounded, least), tokens - 1)
    most = lengths.tokens[last] - 1 if last < len(lengths.tokens) else system.pd.max_tokens
    rounded = round(_boundary(system, lengths, last) / STEP_TOKENS) * STEP_TOKENS
    return min(max(rounded, tokens), most)


def _boundary(system: System, lengths: Lengths, short: int) -> float:
    """The threshold, in tokens, that separates the `short` shortest lengths from the rest."""
    if short == 0:
        return 0.0
    if short == len(lengths.tokens):
        return float(system.pd.max_tokens)
    return (lengths.tokens[short - 1] + lengths.tokens[short]) / 2


def at_best(system: System, lengths: Lengths, egress_bps: float | None) -> Capacity:
    """What `system` sustains at its best threshold.

    Raises:
        ValueError: the profiles do not cover the lengths.
    """
    return capacity(system, lengths, best_threshold(system, lengths, egress_bps), egress_bps)


def _prefill_times(
    system: System, lengths: Lengths, convention: Convention
) -> tuple[Callable[[int], float], Callable[[int], float]]:
    """Prefill seconds of the offloaded and of the other requests, by how many of the lengths are short."""
    if convention == "time_of_mean":
        return (
            lambda short: system.prfaas.prefill_s(lengths.offloaded_mean_long(short)),
            lambda short: system.pd.prefill_s(lengths.mean_short(short)),
        )
    prfaas_s = (0.0, *accumulate(system.prfaas.prefill_s(tokens) for tokens in lengths.tokens))
    pd_s = (0.0, *accumulate(system.pd.prefill_s(tokens) for tokens in lengths.tokens))
    return (
        lambda short: (prfaas_s[-1] - prfaas_s[short]) / (len(lengths.tokens) - short),
        lambda short: pd_s[short] / short,
    )


def best_allocation(
    system: System, lengths: Lengths, egress_bps: float | None, convention: Convention = "time_of_mean"
) -> Allocation:
    """The threshold and the split of the PD cluster with the highest lambda_max, as the paper searches them.

    The n_p + n_d instances of `system` are divided anew, at least one of them for decode. Of equally good
    splits it is the one with most decode instances. One call takes about a millisecond for 8 instances.

    Raises:
        ValueError: the PD cluster has no instances, or the profiles do not cover the lengths.
    """
    instances = system.n_p + system.n_d
    if instances < 1:
        raise ValueError("a PD cluster without instances")

    def best(n_p: int) -> Allocation:
        divided = replace(system, n_p=n_p, n_d=instances - n_p)
        threshold = best_threshold(divided, lengths, egress_bps, convention=convention)
        lambda_max = capacity(divided, lengths, threshold, egress_bps, convention).lambda_max
        return Allocation(threshold, divided.n_p, divided.n_d, lambda_max)

    return max((best(n_p) for n_p in range(instances)), key=lambda found: found.lambda_max)


def cluster_egress_bps(model: ModelProfile, profile: ComputeProfile, tokens: int, instances: int) -> float:
    """Bits per second of KV that `instances` busy with prompts of `tokens` produce: S_kv / T_prefill each.

    Raises:
        ValueError: the profile does not cover `tokens`.
    """
    return instances * 8 * model.kv_bytes(tokens) / profile.prefill_s(tokens)
