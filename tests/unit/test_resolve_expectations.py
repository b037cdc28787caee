"""Resolving what is expected: names, windows, tenants and scaled limits of every kind."""

from __future__ import annotations

import pytest

from testbed.errors import ScenarioError
from tests.unit.test_resolve import ROOT, S, planned


def test_expectations_of_every_kind_have_names() -> None:
    """What is allowed stands in the name as it was written, and in the plan scaled as the link is."""
    settling = "{settling: threshold_tokens, after: drop, within_band: 10%, within: 3s}"
    band = "within_band: 1MB, target: 2MB"
    near = f"{{settling: link.a_to_b.backlog_bytes, after: drop, {band}, within: 3s, to: 9s}}"
    overshoot = "{overshoot: goodput_bps, after: climb.end, max: 12.5%, target: 9gbit}"
    oscillation = "{oscillation: link.a_to_b.throughput_bps, from: 2s, max_amplitude: 1gbit}"
    oracle = "{oracle: kv_goodput_bps, to: 15s, min: 90%}"
    written = f"expect=[{settling}, {near}, {overshoot}, {oscillation}, {oracle}]"
    plan = planned(written)
    assert [(e.name, e.from_ns // S, e.to_ns // S) for e in plan.expectations] == [
        ("threshold_tokens settles within 10% within 3s of drop", 5, 20),
        ("link.a_to_b.backlog_bytes settles within 1MB of 2MB within 3s of drop", 5, 9),
        ("goodput_bps goes at most 12.5% beyond 9gbit after climb.end", 12, 20),
        ("link.a_to_b.throughput_bps swings at most 1gbit for 3 cycles", 2, 20),
        ("kv_goodput_bps at least 90% of the oracle's", 0, 15),
    ]
    half = planned(written, "scale=0.5").expectations
    assert [(e.band_ratio, e.band, e.target, e.high, e.low, e.cycles) for e in half] == [
        (0.1, None, None, None, None, None), (None, 5e5, 1e6, None, None, None),
        (None, None, 4.5e9, 0.125, None, None), (None, None, None, 5e8, None, 3),
        (None, None, None, None, 0.9, None),
    ]  # fmt: skip


def test_fairness_is_among_all_tenants_unless_some_are_named() -> None:
    """In the order of their names."""
    load = "kind: lognormal, rate: 1/s, mu: 9.9, sigma: 1, low: 128, high: 9999, output_tokens: 9"
    parts = [f"{{{load}, tenant: {name}}}" for name in ("c", "a", "b")]
    fair = "{fairness: ttft_s.mean, min: 0.9}, {fairness: ttft_s.mean, max_ratio: 2, tenants: [c, a]}"
    plan = planned(f"workload={{kind: mix, parts: [{', '.join(parts)}]}}", f"expect=[{fair}]")
    assert [(e.name, e.tenants, e.low, e.high) for e in plan.expectations] == [
        ("ttft_s.mean among a, b, c has a fairness of at least 0.9", ("a", "b", "c"), 0.9, None),
        ("ttft_s.mean among c, a at most 2 times the smallest", ("c", "a"), None, 2.0),
    ]


@pytest.mark.parametrize("line", ["oracle: kv_goodput_bps", "fairness: throughput_per_s"])
def test_shares_of_bulk_transfers_are_refused(line: str) -> None:
    """There is no KV that waits, and nobody who asks."""
    with pytest.raises(ScenarioError, match="has no value: the workload sends no requests"):
        planned(f"expect=[{{{line}, min: 0.9}}]", path=ROOT / "scenarios/full_rate.yaml")
