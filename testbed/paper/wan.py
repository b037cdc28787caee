"""Links from 100 to 1 Gbps: what the scheduler finds, beside the best there is by the model (the oracle)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, Literal

import msgspec
import polars as pl

from agents.lengths import Lengths
from agents.model import best_allocation, best_threshold, capacity
from testbed import measure
from testbed.metrics import METRICS
from testbed.paper.printed import LENGTHS, LINKS_GBPS, OUTPUT_TOKENS, TABLE_6, THRESHOLD_TOKENS
from testbed.runs import Wanted
from testbed.scenario.workload import LognormalWorkload
from testbed.workload import probabilities
from testbed.workload.draws import quantile_tokens

Loop = Literal["short", "both"]
POLICY: Final[dict[Loop, str]] = {"short": "bandwidth_aware", "both": "prfaas"}
SCENARIO: Final = "wan.yaml"
SETTLED_S: Final = 60.0
STEADY_S: Final = 200.0
"""So long before the end throughput is measured; whoever has not settled by then shows in the threshold."""
OVERLOAD: Final = 1.08
"""Offered load over what the oracle's choice sustains: enough that every stage that limits has a queue."""
THRESHOLD_TOLERANCE: Final = 0.10
THROUGHPUT_TOLERANCE: Final = 0.05


_WORKLOAD: Final = LognormalWorkload.model_validate(
    {
        "kind": "lognormal",
        "rate": "1/s",
        "mu": LENGTHS.mu,
        "sigma": LENGTHS.sigma,
        "low": LENGTHS.low_tokens,
        "high": LENGTHS.high_tokens,
        "output_tokens": OUTPUT_TOKENS,
    }
)


class Oracle(msgspec.Struct, frozen=True):
    """The best threshold and roles for one link, in the paper's convention, and what they sustain.

    `lambda_max` with the prefill time of the mean length, as the paper counts; `true_lambda_max` with the
    mean prefill time. Between `least_tokens` and `most_tokens` no threshold is worse than by 1 %.
    """

    threshold_tokens: int
    n_p: int
    lambda_max: float
    true_lambda_max: float
    least_tokens: int
    most_tokens: int


class Found(msgspec.Struct, frozen=True):
    """What one run came to: the median threshold and roles of its last 200 s, and what it completed there.

    `settled_s`: from then on, for a minute on end, the threshold was within 10 % of that median and the roles
    were those. `steady_share`: of the time since then in which that was so.
    """

    threshold_tokens: float
    n_p: float
    throughput_per_s: float
    settled_s: float
    steady_share: float


class Row(msgspec.Struct, frozen=True):
    """One link and one set of loops."""

    gbps: float
    loop: Loop
    oracle: Oracle
    found: Found

    @property
    def threshold_holds(self) -> bool:
        """The oracle's roles, and within 10 % of its threshold, or of where another does as well.

        Where decode limits, many do.
        """
        low = (1 - THRESHOLD_TOLERANCE) * min(self.oracle.threshold_tokens, self.oracle.least_tokens)
        high = (1 + THRESHOLD_TOLERANCE) * max(self.oracle.threshold_tokens, self.oracle.most_tokens)
        return self.found.n_p == self.oracle.n_p and low <= self.found.threshold_tokens <= high

    @property
    def throughput_holds(self) -> bool:
        """At most 5 % less than the oracle's choice sustains."""
        return self.found.throughput_per_s >= (1 - THROUGHPUT_TOLERANCE) * self.oracle.true_lambda_max


def oracle(gbps: float, loop: Loop) -> Oracle:
    """The best by the model: of all thresholds, and with both loops of all roles, too."""
    system = TABLE_6[0].system
    lengths = Lengths.from_quantiles([quantile_tokens(_WORKLOAD, p) for p in probabilities()])
    if loop == "both":
        best = best_allocation(system, lengths, gbps * 1e9)
        system = replace(system, n_p=best.n_p, n_d=best.n_d)
    threshold = best_threshold(system, lengths, gbps * 1e9)
    most = capacity(system, LENGTHS, threshold, gbps * 1e9)
    as_good = [
        tokens
        for tokens in range(1000, system.pd.max_tokens, 500)
        if capacity(system, LENGTHS, tokens, gbps * 1e9).lambda_max >= 0.99 * most.lambda_max
    ]
    true = capacity(system, LENGTHS, threshold, gbps * 1e9, "mean_of_times").lambda_max
    return Oracle(threshold, system.n_p, most.lambda_max, true, min(as_good), max(as_good))


def fixed_lambda(gbps: float) -> float:
    """What the paper's threshold of 19,400 sustains behind this link, with the mean prefill time."""
    return capacity(TABLE_6[0].system, LENGTHS, THRESHOLD_TOKENS, gbps * 1e9, "mean_of_times").lambda_max


def wanted(directory: Path, links: tuple[float, ...] = LINKS_GBPS) -> list[Wanted]:
    """The runs: one for each link and loop, under a little more load than the oracle's choice sustains."""
    return [
        Wanted(
            name(gbps, loop),
            directory / SCENARIO,
            (
                f"link.a_to_b.rate={gbps:g}gbit",
                f"duration={duration_s(gbps):g}s",
                f"policy.name={POLICY[loop]}",
                f"workload.rate={OVERLOAD * oracle(gbps, loop).true_lambda_max:.3f}/s",
                "expect=[]",
            ),
        )
        for gbps in links
        for loop in POLICY
    ]


def duration_s(gbps: float) -> float:
    """Of a run: behind 1 Gbps a decode instance waits minutes for KV on its way before it can convert."""
    return 1200.0 if gbps < 2 else 600.0  # noqa: PLR2004 - the two kinds of runs


def name(gbps: float, loop: Loop) -> str:
    """Of a run, and of its directory."""
    return f"{gbps:g}gbps-{loop}"


def found(tables: Mapping[str, pl.DataFrame], duration_s: float) -> Found:
    """What a run of `duration_s` came to."""
    thresholds = measure.series(METRICS["threshold_tokens"], tables).within(0.0, duration_s)
    roles = measure.series(METRICS["n_prefill"], tables).within(0.0, duration_s)
    steady_s = duration_s - STEADY_S
    middle = median(thresholds.within(steady_s, duration_s).values)
    n_p = median(roles.within(steady_s, duration_s).values)
    near = [
        abs(tokens - middle) <= THRESHOLD_TOLERANCE * middle and instances == n_p
        for tokens, instances in zip(thresholds.values, roles.values, strict=True)
    ]
    settled = _settled(thresholds.times_s, near)
    completed = measure.value(METRICS["throughput_per_s"], tables, steady_s, duration_s)
    assert completed is not None, "a run with requests"
    after = near[settled:]
    return Found(middle, n_p, completed, thresholds.times_s[settled], sum(after) / len(after))


def _settled(times_s: Sequence[float], near: Sequence[bool]) -> int:
    """The first interval from which on all were near for SETTLED_S; the last one, if there is none."""
    begun = 0
    for number, is_near in enumerate(near):
        if not is_near:
            begun = number + 1
        elif times_s[number] - times_s[begun] >= SETTLED_S:
            return begun
    return len(near) - 1
