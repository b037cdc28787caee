"""Arrival processes: the rate is the mean, the spread is what the scenario says."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from testbed.resolve import load_and_resolve
from testbed.scenario.arrivals import ArrivalProcess, Arrivals
from testbed.units import NS_PER_S
from testbed.workload.arrivals import arrival_times_ns, expected_arrivals
from testbed.workload.draws import poisson_times_ns

BASE = Path(__file__).parents[1] / "data/base.yaml"
ON_OFF = {"kind": "on_off", "on": "2s", "off": "8s"}
DIURNAL = {"kind": "diurnal", "period": "60s", "amplitude": 0.8}
PROCESSES: list[Any] = [
    "poisson",
    "uniform",
    {"kind": "gamma", "cv": 0.5},
    {"kind": "gamma", "cv": 2},
    ON_OFF,
    DIURNAL,
]


def process(written: object) -> ArrivalProcess:
    """The process as a scenario says it."""
    return TypeAdapter[ArrivalProcess](Arrivals).validate_python(written)


def times_s(
    written: object, rate_per_s: float, phase_s: tuple[float, float] = (0, math.inf), seed: int = 1
) -> list[float]:
    """Arrivals in a phase, at most 40,000."""
    start_s, end_s = phase_s
    phase_ns = (round(start_s * NS_PER_S), round(min(end_s, 1e9) * NS_PER_S))
    draws = np.random.Generator(np.random.PCG64(seed))
    arrivals = arrival_times_ns(process(written), rate_per_s, phase_ns, draws)
    return [t_ns / NS_PER_S for t_ns in islice(arrivals, 40_000)]


def gap_cv(times: list[float]) -> float:
    """The coefficient of variation of the gaps."""
    gaps = [after - before for before, after in pairwise(times)]
    return pstdev(gaps) / fmean(gaps)


@pytest.mark.parametrize("written", PROCESSES, ids=str)
def test_the_rate_is_the_mean(written: object) -> None:
    """Over whole cycles the number of arrivals is rate times time, within four standard deviations."""
    times = times_s(written, 10, (0, 3000))
    widest = 4 * 2 * math.sqrt(30_000)  # gamma's with a cv of 2: its counts vary as cv * sqrt(n)
    assert abs(len(times) - 30_000) < (1.001 if written == "uniform" else widest)


@pytest.mark.parametrize(
    ("written", "cv"),
    [
        ("poisson", 1),
        ("uniform", 0),
        ({"kind": "gamma", "cv": 0.1}, 0.1),
        ({"kind": "gamma", "cv": 1}, 1),
        ({"kind": "gamma", "cv": 2}, 2),
        ({"kind": "gamma", "cv": 5}, 5),
    ],
    ids=str,
)
def test_gaps_vary_as_asked(written: object, cv: float) -> None:
    """The coefficient of variation of 40,000 gaps is the one asked for, within four errors of it."""
    error = 4 * math.sqrt((0.5 + 2 * cv**2) / 40_000) * cv
    assert gap_cv(times_s(written, 50)) == pytest.approx(cv, abs=error + 1e-6)


def test_bursts_come_while_on_alone() -> None:
    """Nothing arrives while off, and five times the rate, Poisson, while on."""
    times = times_s(ON_OFF, 10, (0, 1000))
    assert max(t % 10 for t in times) < 2
    counts = np.bincount([int(t // 10) for t in times], minlength=100)
    assert np.mean(counts) == pytest.approx(100, abs=4 * math.sqrt(100 / 100))
    assert 0.6 < np.var(counts) / np.mean(counts) < 1.6
    assert gap_cv(times) > 3


def test_days_rise_and_fall() -> None:
    """Each sixth of the period has the sine's share of the arrivals, within four standard deviations."""
    times = times_s(DIURNAL, 20, (0, 1800))
    counts = np.bincount([int(t % 60 // 10) for t in times], minlength=6)
    edges = np.arange(7) * 2 * math.pi / 6
    expected = 20 * 300 * (1 - 0.8 * np.diff(np.cos(edges)) / np.diff(edges))
    assert np.all(np.abs(counts - expected) < 4 * np.sqrt(expected))


@pytest.mark.parametrize("written", PROCESSES, ids=str)
@pytest.mark.parametrize("span_s", [0.3, 7.0, 25.0])
def test_short_phases_have_the_number_expected(written: object, span_s: float) -> None:
    """Not only in the limit: over many seeds, a phase of any length has as many arrivals as it should."""
    counts = [len(times_s(written, 5, (0, span_s), seed)) for seed in range(300)]
    expected = expected_arrivals(process(written), 5, round(span_s * NS_PER_S))
    error = 4.5 * max(pstdev(counts), 0.5) / math.sqrt(len(counts))
    assert fmean(counts) == pytest.approx(expected, abs=error)


def test_poisson_draws_what_it_always_drew() -> None:
    """The default process is the plain one, number for number."""
    draws = np.random.Generator(np.random.PCG64(3))
    plain = list(poisson_times_ns(4, (NS_PER_S, 60 * NS_PER_S), draws))
    assert [round(t * NS_PER_S) for t in times_s("poisson", 4, (1, 60), 3)] == plain


@given(
    written=st.sampled_from(PROCESSES),
    start_s=st.floats(min_value=0, max_value=1000),
    length_s=st.floats(min_value=1e-6, max_value=50),
    rate_per_s=st.floats(min_value=0.01, max_value=50),
    seed=st.integers(min_value=0, max_value=2**32),
)
@settings(deadline=None, max_examples=60)
def test_arrivals_lie_in_their_phase(
    written: object, start_s: float, length_s: float, rate_per_s: float, seed: int
) -> None:
    """In order, from the phase's begin on, before its end; a phase only moves them."""
    times = times_s(written, rate_per_s, (start_s, start_s + length_s), seed)
    assert times == sorted(times)
    assert all(start_s - 1e-9 <= t < start_s + length_s for t in times)
    again = times_s(written, rate_per_s, (start_s, start_s + length_s), seed)
    moved = times_s(written, rate_per_s, (0, length_s - 1e-8), seed)
    assert again == times
    assert [t + start_s for t in moved] == pytest.approx(times[: len(moved)], abs=1e-8)


@pytest.mark.parametrize("written", ["uniform", "{kind: gamma, cv: 3}", "{kind: on_off, on: 1s, off: 1s}"])
def test_drawn_workloads_arrive_so(written: str) -> None:
    """A part of a mix has its arrivals; its lengths and the other part stay, number for number."""
    lengths = "mu: 7, sigma: 1, low: 128, high: 4096"
    drawn = f"{{kind: lognormal, rate: 9/s, {lengths}, output_tokens: 9, from: 5s, until: 15s, arrivals: %s}}"
    talks = (
        f"{{kind: sessions, rate: 3/s, turns: 1, first: {{{lengths}}}, increment: {{{lengths}}}, "
        "output_tokens: 9, think: 1s, tenant: talks, arrivals: %s}"
    )

    def planned(one: str, other: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        mixed = f"workload={{kind: mix, parts: [{drawn % one}, {talks % other}]}}"
        _, plan = load_and_resolve(BASE, overrides=[mixed])
        requests = [(request.tenant, request.t_ns, request.input_tokens) for request in plan.requests]
        return [r[1:] for r in requests if r[0] == "default"], [r[1:] for r in requests if r[0] == "talks"]

    plain, changed, sessions = (
        planned("poisson", "poisson"),
        planned(written, "poisson"),
        planned("poisson", written),
    )
    assert changed[1] == plain[1]
    assert sessions[0] == plain[0]
    for before, after in ((plain[0], changed[0]), (plain[1], sessions[1])):
        assert [t for t, _ in before] != [t for t, _ in after]
        both = min(len(before), len(after))
        assert both > 10
        assert [tokens for _, tokens in before[:both]] == [tokens for _, tokens in after[:both]]
    assert all(5 * NS_PER_S <= t < 15 * NS_PER_S for t, _ in changed[0])
