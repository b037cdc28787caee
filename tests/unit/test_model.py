"""The throughput model against table 6 of the paper and against the oracle derived from it (paper.yaml)."""

from dataclasses import replace
from math import exp, inf, log
from statistics import NormalDist

import pytest

from agents.model import Lengths, Load, System, best_threshold, capacity
from agents.profiles import MODELS, PROFILES

NORMAL = NormalDist(9.90, 1.00)
LOW, HIGH = NORMAL.cdf(log(128)), NORMAL.cdf(log(131072))
PAPER = System(
    PROFILES["h200"], PROFILES["h20"], MODELS["internal_1t"], n_prfaas=4, n_p=3, n_d=5, output_tokens=1024
)


def paper_lengths(points: int) -> Lengths:
    """The paper's truncated lognormal as equally likely quantiles."""
    at = (LOW + (HIGH - LOW) * (i + 0.5) / points for i in range(points))
    return Lengths.from_quantiles([round(exp(NORMAL.inv_cdf(share))) for share in at])


LENGTHS = paper_lengths(512)


@pytest.mark.parametrize("points", [128, 512, 2048])
def test_best_threshold_reproduces_table_6(points: int) -> None:
    """With 100 Gbps the search finds the paper's operating point, from few quantiles or many."""
    lengths = paper_lengths(points)
    threshold = best_threshold(PAPER, lengths, 100e9)
    best = capacity(PAPER, lengths, threshold, 100e9)
    assert threshold == pytest.approx(19600, abs=500)
    assert best.lambda_max == pytest.approx(3.198, rel=0.02)
    assert best.share_long == pytest.approx(0.4957, abs=0.005)
    assert best.egress_bps == pytest.approx(12.0e9, rel=0.02)
    assert best.mean_long_tokens == pytest.approx(45046, rel=0.01)


def test_thetas_meet_table_6() -> None:
    """At the paper's threshold each stage's throughput is the printed one within 3 %."""
    at_paper = capacity(PAPER, LENGTHS, 19400, 100e9)
    assert at_paper.theta_prfaas == pytest.approx(1.61, rel=0.03)
    assert at_paper.theta_p == pytest.approx(1.64, rel=0.03)
    assert at_paper.theta_d == pytest.approx(3.91, rel=0.03)
    assert at_paper.lambda_max == pytest.approx(3.24, rel=0.03)


def test_homogeneous_and_naive_columns_of_table_6() -> None:
    """Nothing offloaded and everything offloaded are the two ends of the same model."""
    homogeneous = replace(PAPER, n_prfaas=0, n_p=9, n_d=3)
    assert best_threshold(homogeneous, LENGTHS, None) == 131072
    assert capacity(homogeneous, LENGTHS, 131072, None).lambda_max == pytest.approx(2.11, rel=0.02)
    naive = replace(PAPER, n_p=0, n_d=8)
    assert best_threshold(naive, LENGTHS, None) == 0
    assert capacity(naive, LENGTHS, 0, None).lambda_max == pytest.approx(2.45, rel=0.02)


@pytest.mark.parametrize(
    ("gbps", "threshold", "lambda_max", "fixed"),
    [
        (12, 19600, 3.20, 3.19),
        (10, 21600, 2.80, 2.66),
        (8, 24400, 2.38, 2.13),
        (5, 31400, 1.76, 1.33),
        (2, 51200, 1.13, 0.53),
        (1, 70000, 0.92, 0.27),
    ],
)
def test_wan_oracle(gbps: float, threshold: int, lambda_max: float, fixed: float) -> None:
    """For each egress rate the best threshold, its throughput and the fixed one's are the oracle's."""
    best = best_threshold(PAPER, LENGTHS, gbps * 1e9)
    assert best == pytest.approx(threshold, abs=max(500, 0.03 * threshold))
    assert capacity(PAPER, LENGTHS, best, gbps * 1e9).lambda_max == pytest.approx(lambda_max, rel=0.02)
    assert capacity(PAPER, LENGTHS, 19400, gbps * 1e9).lambda_max == pytest.approx(
        fixed, abs=max(0.01, 0.02 * fixed)
    )


@pytest.mark.parametrize("egress_bps", [None, 11e9, 8e9, 3e9, 1e9])
def test_bisection_agrees_with_a_full_scan(egress_bps: float | None) -> None:
    """No threshold on a grid of 100 tokens gives noticeably more than the one found by bisection."""
    found = capacity(PAPER, LENGTHS, best_threshold(PAPER, LENGTHS, egress_bps), egress_bps).lambda_max
    scanned = max(capacity(PAPER, LENGTHS, t, egress_bps).lambda_max for t in range(100, 131072, 100))
    assert scanned == pytest.approx(found, rel=0.005)


def test_no_link_offloads_nothing() -> None:
    """With an egress of 0 the threshold is the longest profiled prompt, and everything stays."""
    assert best_threshold(PAPER, LENGTHS, 0.0) == 131072
    assert capacity(PAPER, LENGTHS, 131072, 0.0).theta_prfaas == inf


def test_scale_divides_out() -> None:
    """A tenth of the KV bytes over a tenth of the link gives the same threshold."""
    tenth = replace(PAPER, scale=0.1)
    assert best_threshold(tenth, LENGTHS, 0.8e9) == best_threshold(PAPER, LENGTHS, 8e9)


def test_load_moves_work_to_the_other_side() -> None:
    """Work waiting on one side pushes the threshold so that this side gets less of the new requests."""
    idle = best_threshold(PAPER, LENGTHS, 8e9)
    assert best_threshold(PAPER, LENGTHS, 8e9, Load(pd=0.2)) < idle
    assert best_threshold(PAPER, LENGTHS, 8e9, Load(egress_bps=1e9)) > idle
    assert best_threshold(PAPER, LENGTHS, None, Load(prfaas=0.2)) > best_threshold(PAPER, LENGTHS, None)


def test_lengths_know_their_moments() -> None:
    """Shares and conditional means follow from counting, ties included."""
    lengths = Lengths.from_quantiles([400, 100, 200, 200])
    assert [lengths.count_short(t) for t in (99, 100, 199.5, 200, 400)] == [0, 1, 1, 3, 4]
    assert (lengths.share_long(3), lengths.mean_long(1), lengths.mean_short(3)) == (0.25, 800 / 3, 500 / 3)


@pytest.mark.parametrize("tokens", [[], [100, 0]])
def test_lengths_refuse_nothing_and_empty_prompts(tokens: list[int]) -> None:
    """A distribution needs a length, and a prompt a token."""
    with pytest.raises(ValueError, match="at least one"):
        Lengths.from_quantiles(tokens)
