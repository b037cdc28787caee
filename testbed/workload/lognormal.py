"""The paper's synthetic workload: lognormal input lengths cut at both ends; Poisson arrivals by default.

Source: arXiv 2604.15039, section 4.1 (mu 9.90, sigma 1.00, cut to 128 and 131,072 tokens, 1,024 output
tokens). Lengths come from the inverse of the distribution function, one uniform number each, so that the
same generator gives the same lengths whatever the arrival rate is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from testbed.plan import Request
from testbed.scenario.workload import LognormalWorkload
from testbed.workload import Load, probabilities
from testbed.workload.arrivals import arrival_times_ns
from testbed.workload.draws import quantile_tokens

STRATA: Final = 64
"""Long enough for lengths to be spread evenly, short enough for a run to hold several blocks of it."""


def generate(
    spec: LognormalWorkload, duration_ns: int, *, arrivals: np.random.Generator, lengths: np.random.Generator
) -> Load:
    """Requests in the spec's phase of [0, duration); the two generators are used for nothing else."""
    uniforms = _stratified(lengths) if spec.draw == "stratified" else _independent(lengths)
    times_ns = arrival_times_ns(spec.arrivals, spec.rate, spec.phase(duration_ns), arrivals)
    requests = tuple(
        Request(
            id=number,
            t_ns=t_ns,
            input_tokens=quantile_tokens(spec, uniform),
            output_tokens=spec.output_tokens,
            tenant=spec.tenant,
        )
        for number, (t_ns, uniform) in enumerate(zip(times_ns, uniforms, strict=False))
    )
    quantiles = tuple(quantile_tokens(spec, probability) for probability in probabilities())
    return Load(
        requests=requests,
        length_quantiles=quantiles,
        increment_quantiles=quantiles,
        arrival_per_s=spec.rate,
    )


def _independent(generator: np.random.Generator) -> Iterator[float]:
    while True:
        yield generator.random()


def _stratified(generator: np.random.Generator) -> Iterator[float]:
    """Each 64 numbers in a row lie one in each 64th of [0, 1), in a drawn order and at a drawn place there.

    The offered tokens of 300 independent requests of the paper's workload vary by 6 % from seed to seed,
    which hides what a capacity measurement looks for; those of 300 stratified ones by 1.4 %. Each number on
    its own is still uniform, so every length is as likely as before; only their sum is steadier (stratified
    sampling: Owen, "Monte Carlo theory, methods and examples", chapter 8).
    """
    while True:
        order = sorted(range(STRATA), key=generator.random(STRATA).tolist().__getitem__)
        for stratum, within in zip(order, generator.random(STRATA).tolist(), strict=True):
            yield (stratum + within) / STRATA
