"""Noise: the distribution that was asked for, within its limits, from its own dice."""

from __future__ import annotations

from itertools import pairwise
from math import isclose
from statistics import fmean, stdev

from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.resolve.noise import DEVIATIONS, LEAST, factors, least, steps_in
from testbed.scenario.link import Excursions, Noise

S = 1_000_000_000


def noise(cv: float = 0.0, every_ns: int = S // 10, drops: tuple[float, int, int] | None = None) -> Noise:
    """Noise with these values; `drops` are depth, gap and length."""
    excursions = None
    if drops is not None:
        excursions = Excursions.model_construct(depth=drops[0], gap=drops[1], length=drops[2])
    return Noise.model_construct(cv=cv, every=every_ns, excursions=excursions)


def test_the_level_has_its_mean_and_deviation() -> None:
    """Ten thousand draws: mean 1 within four standard errors, deviation within 3 % (the cut takes 1.3 %)."""
    drawn = [factor for _, factor in factors(noise(0.05), 0, 1000 * S, 1, "x")]
    assert len(drawn) == 10_000
    assert abs(fmean(drawn) - 1) < 4 * 0.05 / 100
    assert isclose(stdev(drawn), 0.05, rel_tol=0.03)


def test_excursions_take_their_share_of_the_time() -> None:
    """Of half the rate for a fifth of the time, over a thousand excursions; nothing else happens."""
    length_ns = 5000 * S
    steps = factors(noise(drops=(0.5, 4 * S, S)), 0, length_ns, 1, "x")
    assert {factor for _, factor in steps} == {1.0, 0.5}
    low_ns = sum(
        end - begin for (begin, factor), (end, _) in pairwise([*steps, (length_ns, 1.0)]) if factor < 1
    )
    assert isclose(low_ns / length_ns, 0.2, rel_tol=0.1)


@given(
    cv=st.floats(0.001, 0.5),
    every_ms=st.integers(1, 500),
    depth=st.floats(0.01, 0.95),
    gap_ms=st.integers(1, 5000),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=50, deadline=None)
def test_factors_keep_their_limits_and_their_order(
    cv: float, every_ms: int, depth: float, gap_ms: int, seed: int
) -> None:
    """Times rise from the first moment on, factors lie between the least and three deviations."""
    spec = noise(cv, every_ms * 10**6, (depth, gap_ms * 10**6, 10**8))
    steps = factors(spec, 3 * S, 9 * S, seed, "x")
    times = [t_ns for t_ns, _ in steps]
    assert times[0] == 3 * S
    assert all(before < after for before, after in pairwise(times))
    assert times[-1] < 9 * S
    assert all(LEAST <= least(spec) <= factor <= 1 + DEVIATIONS * cv + 1e-12 for _, factor in steps)


def test_excursions_do_not_shift_the_level() -> None:
    """Both have dice of their own: with excursions the level between them is what it was without."""
    level = dict(factors(noise(0.05), 0, 100 * S, 1, "x"))
    both = dict(factors(noise(0.05, drops=(0.5, 10 * S, S)), 0, 100 * S, 1, "x"))
    assert {round(both[t_ns] / level[t_ns], 9) for t_ns in level} == {1.0, 0.5}


def test_the_number_of_steps_is_known_beforehand() -> None:
    """About as many as are drawn, so that too many can be refused without drawing them."""
    spec = noise(0.05, drops=(0.5, S, S))
    assert isclose(steps_in(spec, 1000 * S), len(factors(spec, 0, 1000 * S, 1, "x")), rel_tol=0.05)
