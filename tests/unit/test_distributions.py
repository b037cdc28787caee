"""Tables of delay: their moments, their extremes, and netem's own arithmetic on them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.shaping import distributions
from testbed.shaping.distributions import ENTRIES, LARGEST, UNIT, cdf, deviations, extremes, from_samples


def entries(name: str) -> list[float]:
    return [float(one) / UNIT for one in np.frombuffer(distributions.table(name), "<i2")]


@pytest.mark.parametrize(("name", "deviation"), [("uniform", 1 / math.sqrt(3)), ("normal", 1), ("pareto", 1)])
def test_a_table_has_its_mean_and_deviation(name: str, deviation: float) -> None:
    """4096 values, mean 0, the deviation of the distribution, in order."""
    values = entries(name)
    assert len(values) == ENTRIES
    assert values == sorted(values)
    assert np.mean(values) == pytest.approx(0, abs=1e-4)
    assert np.std(values) == pytest.approx(deviation, rel=1e-4)


def test_tables_have_their_shapes() -> None:
    """Uniform ends at one scale, normal has 68 % within one, Pareto a long tail above and none below."""
    assert (min(entries("uniform")), max(entries("uniform"))) == pytest.approx((-1, 1), abs=1e-3)
    assert np.mean(np.abs(entries("normal")) < 1) == pytest.approx(0.683, abs=0.001)
    pareto = entries("pareto")
    assert min(pareto) > -1
    assert max(pareto) == LARGEST / UNIT
    assert np.mean(np.array(pareto) == LARGEST / UNIT) == pytest.approx(0.019, abs=0.001)


def netem(entry: int, sigma: int) -> int:
    """`tabledist` of net/sched/sch_netem.c, operation by operation, for a mean of 0."""
    x = (sigma % UNIT) * entry
    x += UNIT // 2 if x >= 0 else -(UNIT // 2)
    quotient = abs(x) // UNIT * (1 if x >= 0 else -1)
    return quotient + (sigma // UNIT) * entry


@given(
    values=st.lists(st.integers(-32768, 32767), min_size=1, max_size=50),
    jitter_ns=st.integers(0, 2**31 - 1),
)
def test_deviations_are_what_netem_computes(values: list[int], jitter_ns: int) -> None:
    """To the nanosecond, for any table and any jitter."""
    table = np.array(values, "<i2").tobytes()
    expected = sorted(netem(value, jitter_ns) for value in values)
    assert deviations(table, jitter_ns).tolist() == expected
    assert extremes(table, jitter_ns) == (expected[0], expected[-1])
    assert cdf(table, jitter_ns, expected[-1]) == 1
    assert cdf(table, jitter_ns, expected[0] - 1) == 0


@given(
    samples=st.lists(st.integers(0, 10**9), min_size=2, max_size=500).filter(lambda many: len(set(many)) > 1)
)
def test_samples_come_back(samples: list[int]) -> None:
    """Mean and extremes of measured delays are those of their table, within its steps."""
    table, mean_ns, scale_ns = from_samples(samples)
    steps_ns = max(abs(one - mean_ns) for one in samples) / LARGEST + 2
    low, high = extremes(table, scale_ns)
    assert mean_ns == pytest.approx(np.mean(samples), abs=(max(samples) - min(samples)) / 8 + 1)
    assert mean_ns + low == pytest.approx(min(samples), abs=2 * steps_ns)
    assert mean_ns + high == pytest.approx(max(samples), abs=2 * steps_ns)
    assert np.mean(deviations(table, scale_ns)) == pytest.approx(0, abs=2 * steps_ns)


def test_alike_samples_are_refused() -> None:
    """They have no distribution, and a table of zeros would swallow any jitter."""
    for samples in ([7_000], [7_000, 7_000]):
        with pytest.raises(ValueError, match="alike"):
            from_samples(samples)


@pytest.mark.parametrize(
    ("others", "rare", "fits"), [(10_000, 1, False), (10_000, 2, True), (4_095, 1, True), (7_000, 1, False)]
)
def test_outliers_too_rare_for_the_table_are_refused(others: int, rare: int, fits: bool) -> None:
    """A table has 4096 entries: one of 10,001 samples is 0.41 of one, two of 10,002 are 0.82."""
    samples = [1_000 + number % 2 for number in range(others)] + [5 * 10**9] * rare
    if fits:
        assert extremes(*from_samples(samples)[::2])[1] > 4 * 10**9
    else:
        with pytest.raises(ValueError, match=f"of {others + rare}.*standard deviation is"):
            from_samples(samples)


def test_samples_that_no_table_holds_are_refused() -> None:
    """None at all, or one more than 8.5 s off the mean."""
    with pytest.raises(ValueError, match="no samples"):
        from_samples([])
    with pytest.raises(ValueError, match="from the mean"):
        from_samples([0, 60 * 10**9])
