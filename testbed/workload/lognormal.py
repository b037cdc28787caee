"""The paper's synthetic workload: lognormal input lengths cut at both ends, Poisson arrivals.

Source: arXiv 2604.15039, section 4.1 (mu 9.90, sigma 1.00, cut to 128 and 131,072 tokens, 1,024 output
tokens). Lengths come from the inverse of the distribution function, one uniform number each, so that the
same generator gives the same lengths whatever the arrival rate is.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from testbed.plan import Request
from testbed.scenario.model import LognormalWorkload
from testbed.units import NS_PER_S
from testbed.workload import Load, probabilities


def generate(
    spec: LognormalWorkload, duration_ns: int, *, arrivals: np.random.Generator, lengths: np.random.Generator
) -> Load:
    """Requests in [0, duration); the two generators are used for nothing else."""
    requests: list[Request] = []
    t_s = 0.0
    while (t_ns := round((t_s := t_s + _gap_s(spec, arrivals)) * NS_PER_S)) < duration_ns:
        tokens = quantile_tokens(spec, lengths.random())
        requests.append(
            Request(id=len(requests), t_ns=t_ns, input_tokens=tokens, output_tokens=spec.output_tokens)
        )
    quantiles = tuple(quantile_tokens(spec, probability) for probability in probabilities())
    return Load(requests=tuple(requests), length_quantiles=quantiles, arrival_per_s=spec.rate)


def quantile_tokens(spec: LognormalWorkload, probability: float) -> int:
    """The input length below which the share `probability` of requests lies, in whole tokens."""
    normal = NormalDist(spec.mu, spec.sigma)
    low, high = normal.cdf(math.log(spec.low)), normal.cdf(math.log(spec.high))
    mixed = low + probability * (high - low)
    if not 0 < mixed < 1:  # the cuts lie so far out that the distribution function is flat there
        return spec.low if mixed <= 0 else spec.high
    exponent = min(max(normal.inv_cdf(mixed), math.log(spec.low)), math.log(spec.high))
    return min(max(round(math.exp(exponent)), spec.low), spec.high)


def _gap_s(spec: LognormalWorkload, generator: np.random.Generator) -> float:
    """Time to the next arrival; `random` is below 1, so the logarithm is finite."""
    return -math.log1p(-generator.random()) / spec.rate
