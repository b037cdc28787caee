"""Who got how much: tenants beside each other, and KV beside what an oracle would have carried."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from testbed import measure
from testbed.expect import oracle
from testbed.expect.results import limited, limits, percent, result, stretch, unknown, window
from testbed.measure import Tables
from testbed.metrics import METRICS
from testbed.plan import Expectation
from testbed.readable import number, quantity
from testbed.verdict import Result

CAPACITY = METRICS["link.a_to_b.throughput_bps"]


def jain_index(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 when all are alike, 1/n when one has everything. Needs one above zero.

    Jain, Chiu and Hawe: A Quantitative Measure of Fairness and Discrimination for Resource Allocation in
    Shared Computer Systems, DEC-TR-301, 1984.
    """
    largest = max(values)
    shares = [value / largest for value in values]  # so that no square is too large, or too small
    return float(sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)))


def fairness(expectation: Expectation, tables: Tables) -> Result:
    """Whether tenants got alike."""
    metric = METRICS[expectation.metric]
    from_s, to_s = window(expectation)
    during, allowed = stretch(from_s, to_s), f"(allowed {limits(expectation, metric)})"
    values: dict[str, float] = {}
    for tenant in expectation.tenants:
        own = {**tables, "requests": tables["requests"].filter(pl.col("tenant") == tenant)}
        without, requests = measure.unserved(metric, own, from_s, to_s)
        if without:
            sentence = (
                f"{expectation.metric} of {tenant}: {without} of {requests} requests {during} never got there"
            )
            return result(expectation, "FAIL", None, None, f"{sentence} {allowed}")
        measured = measure.value(metric, own, from_s, to_s)
        if measured is None:
            return unknown(expectation, f"{expectation.metric} of {tenant} was not measured {during}")
        values[tenant] = measured
    least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    if not values[most]:
        return unknown(
            expectation, f"{expectation.metric} was 0 for every tenant {during}: nobody got anything"
        )
    ends = (
        f"{expectation.metric} was {quantity(values[least], metric.unit)} for {least} and"
        f" {quantity(values[most], metric.unit)} for {most} {during}"
    )
    if expectation.low is not None:
        index = jain_index(list(values.values()))
        return limited(expectation, index, f"{ends}: Jain's index is {number(index)} {allowed}")
    if not values[least]:
        return result(expectation, "FAIL", None, None, f"{ends} {allowed}")
    ratio = values[most] / values[least]
    return limited(expectation, ratio, f"{ends}: {number(ratio)} times as much {allowed}")


def against_oracle(expectation: Expectation, tables: Tables) -> Result:
    """Whether enough was carried of what the link could have carried."""
    from_s, to_s = window(expectation)
    hole = measure.hole(CAPACITY, tables, from_s, to_s)
    if hole:
        return unknown(expectation, f"the link has no samples {stretch(*hole)}")
    found = oracle.compare(tables, from_s, to_s)
    if found is None:
        why = "no KV waited for the link for a whole interval between samples of its connections"
        return unknown(expectation, f"{why} {stretch(from_s, to_s)}")
    ratio = found.carried_bits / found.possible_bits
    what = (
        f"{quantity(found.carried_bits / 8, 'bytes')} of KV crossed in the {quantity(found.waited_s, 's')}"
        f" {stretch(from_s, to_s)} in which KV waited for the link alone: {percent(ratio)} of the possible"
    )
    return limited(expectation, ratio, f"{what} (allowed {limits(expectation, METRICS[expectation.metric])})")
