"""Distributions of lengths: closed forms against numeric integration, counting against plain means."""

from math import exp, inf, log
from statistics import NormalDist, fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agents.lengths import Distribution, Lengths, TruncatedLognormal, mean_prefill_s
from agents.profiles import PROFILES

PAPER = TruncatedLognormal(mu=9.90, sigma=1.00, low_tokens=128, high_tokens=131072)
LISTS = st.lists(st.integers(1, 131072), min_size=1, max_size=40)


def quantiles(dist: TruncatedLognormal, points: int) -> list[float]:
    """Equally likely lengths by the inverse of the normal distribution, an independent way to the moments."""
    normal = NormalDist(dist.mu, dist.sigma)
    low, high = normal.cdf(log(dist.low_tokens)), normal.cdf(log(dist.high_tokens))
    return [exp(normal.inv_cdf(low + (high - low) * (i + 0.5) / points)) for i in range(points)]


def test_the_paper_s_lengths() -> None:
    """Mean about 27K; 49.57 % are above 19,400 tokens, with a mean of 45,046."""
    assert PAPER.mean(0, inf) == pytest.approx(27486, abs=1)
    assert PAPER.share(19400, inf) == pytest.approx(0.4957, abs=5e-5)
    assert PAPER.mean(19400, inf) == pytest.approx(45046, abs=1)


@pytest.mark.parametrize("power", [-0.5, 0.24, 1.0, 1.4, 2.0])
@pytest.mark.parametrize(("above", "up_to"), [(0, inf), (0, 1024), (19400, inf), (30000, 40000)])
def test_closed_forms_meet_integration(above: float, up_to: float, power: float) -> None:
    """Share and conditional moments of any power are those of 200,000 quantiles."""
    inside = [tokens for tokens in quantiles(PAPER, 200_000) if above < tokens <= up_to]
    assert PAPER.share(above, up_to) == pytest.approx(len(inside) / 200_000, abs=1e-5)
    assert PAPER.mean(above, up_to, power) == pytest.approx(fmean(t**power for t in inside), rel=1e-3)


@given(
    st.floats(2, 12), st.floats(0.2, 3), st.floats(-3, 3), st.lists(st.floats(1, 2e5), min_size=2, max_size=2)
)
def test_a_conditional_mean_lies_in_its_range(
    mu: float, sigma: float, power: float, cut: list[float]
) -> None:
    """Rounding never moves a mean out of its range, however narrow that is, nor a share below 0."""
    dist = TruncatedLognormal(mu, sigma, 64, 131072)
    above, up_to = sorted(cut)
    assume(dist.share(above, up_to))
    assert dist.share(0, above) + dist.share(above, up_to) + dist.share(up_to, inf) == pytest.approx(1)
    ends = sorted(min(max(tokens, 64), 131072) ** power for tokens in (above, up_to))
    assert ends[0] <= dist.mean(above, up_to, power) <= ends[1]


def test_rounding_in_a_narrow_range_stays_within_the_profile() -> None:
    """Of the last 1e-8 tokens the formulas alone give a mean 190 tokens above the longest length."""
    assert 131071 < PAPER.mean(131072 - 1e-8, inf) <= 131072
    assert PROFILES["h200"].prefill_s(PAPER.mean(131072 - 1e-8, inf)) == pytest.approx(7.40)


def test_no_length_outside_the_bounds() -> None:
    """Shares outside are exactly 0, so that nobody plans for them."""
    assert (PAPER.share(0, 128), PAPER.share(131072, inf), PAPER.share(5000, 4000)) == (0, 0, 0)
    assert PAPER.share(0, inf) == 1


@pytest.mark.parametrize(
    ("mu", "sigma", "low", "high"),
    [(9.9, 0.0, 128, 131072), (9.9, 1.0, 0, 100), (9.9, 1.0, 100, 100), (0.0, 0.1, 1000, 2000)],
)
def test_what_is_no_distribution_is_refused(mu: float, sigma: float, low: float, high: float) -> None:
    """No spread, bounds below one token or the wrong way round, and bounds that nothing reaches."""
    with pytest.raises(ValueError, match="no lognormal"):
        TruncatedLognormal(mu, sigma, low, high)


@given(LISTS, st.floats(0, 140000))
def test_empirical_prefill_time_is_a_plain_mean(tokens: list[int], cut: float) -> None:
    """E[T(L)] by power laws per segment is the mean of T over the list, above any cut and below it."""
    lengths, profile = Lengths.from_quantiles(tokens), PROFILES["h20"]
    for above, up_to in ((0.0, inf), (0.0, cut), (cut, inf)):
        inside = [length for length in tokens if above < length <= up_to]
        assert lengths.share(above, up_to) == pytest.approx(len(inside) / len(tokens))
        if inside:
            assert lengths.mean(above, up_to) == pytest.approx(fmean(inside))
            expected_s = fmean(profile.prefill_s(length) for length in inside)
            assert mean_prefill_s(lengths, profile, above, up_to) == pytest.approx(expected_s)


@pytest.mark.parametrize("name", ["h200", "h20", "h200_minimax_m2_5"])
def test_prefill_time_of_the_closed_form_is_exact(name: str) -> None:
    """It is the mean over many quantiles, and more than the time of the mean length."""
    profile = PROFILES[name]
    exact_s = mean_prefill_s(PAPER, profile)
    assert exact_s == pytest.approx(fmean(profile.prefill_s(t) for t in quantiles(PAPER, 100_000)), rel=1e-4)
    assert exact_s > profile.prefill_s(PAPER.mean(0, inf))


@pytest.mark.parametrize(
    "lengths", [TruncatedLognormal(9.9, 1, 128, 200000), Lengths.from_quantiles([131073])]
)
def test_prefill_time_beyond_the_profile_is_refused(lengths: Distribution) -> None:
    """Nobody measured it; and a class without requests has no mean."""
    with pytest.raises(ValueError, match="above its 131072 tokens"):
        mean_prefill_s(lengths, PROFILES["h200"])
    with pytest.raises(ValueError, match="no lengths"):
        mean_prefill_s(lengths, PROFILES["h200"], 0, 100)


def test_what_is_offloaded_may_be_less_than_what_stays() -> None:
    """With pairs the threshold is held against the first, and the offloaded side computes the second."""
    lengths = Lengths.from_pairs([(400, 40), (100, 100), (200, 20)])
    assert lengths.tokens == (100, 200, 400)
    assert (lengths.mean_short(1), lengths.mean_long(1), lengths.offloaded_mean_long(1)) == (100, 300, 30)
    assert (lengths.mean(100, inf), lengths.offloaded_mean(100)) == (300, 30)
    same = Lengths.from_quantiles([100, 200, 400])
    assert same.offloaded_mean(100) == same.mean(100, inf)
    with pytest.raises(ValueError, match="at least 1 token"):
        Lengths.from_pairs([(5, 0)])
