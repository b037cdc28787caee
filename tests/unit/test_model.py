"""The throughput model against table 6 of the paper and against the oracle derived from it (paper.yaml)."""

from dataclasses import replace
from math import exp, inf, log
from statistics import NormalDist

import pytest

from agents.lengths import Distribution, TruncatedLognormal
from agents.model import Convention, Lengths, Load, System, best_allocation, best_threshold, capacity
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
CLOSED = TruncatedLognormal(mu=9.90, sigma=1.00, low_tokens=128, high_tokens=131072)
HOMOGENEOUS = replace(PAPER, n_prfaas=0, n_p=9, n_d=3)
NAIVE = replace(PAPER, n_p=0, n_d=8)


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


@pytest.mark.parametrize("lengths", [LENGTHS, CLOSED])
def test_prfaas_column_of_table_6(lengths: Distribution) -> None:
    """At the paper's threshold each stage's throughput is the printed one within 3 %."""
    at_paper = capacity(PAPER, lengths, 19400, 100e9)
    assert at_paper.theta_prfaas == pytest.approx(1.61, rel=0.03)
    assert at_paper.theta_p == pytest.approx(1.64, rel=0.03)
    assert at_paper.theta_d == pytest.approx(3.91, rel=0.03)
    assert at_paper.lambda_max == pytest.approx(3.24, rel=0.02)
    assert at_paper.share_long == pytest.approx(0.496, abs=0.005)
    assert at_paper.egress_bps == pytest.approx(12.0e9, rel=0.02)
    assert at_paper.lambda_max / capacity(HOMOGENEOUS, lengths, 131072, None).lambda_max == pytest.approx(
        1.54, rel=0.03
    )


@pytest.mark.parametrize("lengths", [LENGTHS, CLOSED])
def test_homogeneous_column_of_table_6(lengths: Distribution) -> None:
    """Nothing offloaded: 9 instances prefill, 3 decode, and prefill limits."""
    assert best_threshold(HOMOGENEOUS, LENGTHS, None) == 131072
    at_paper = capacity(HOMOGENEOUS, lengths, 131072, None)
    assert at_paper.theta_p == pytest.approx(2.11, rel=0.03)
    assert at_paper.theta_d == pytest.approx(2.35, rel=0.03)
    assert at_paper.lambda_max == pytest.approx(2.11, rel=0.02)


@pytest.mark.parametrize("lengths", [LENGTHS, CLOSED])
def test_naive_column_of_table_6(lengths: Distribution) -> None:
    """Everything offloaded: the H200s limit, 1.16 times the homogeneous cluster."""
    assert best_threshold(NAIVE, LENGTHS, None) == 0
    at_paper = capacity(NAIVE, lengths, 0, None)
    assert at_paper.theta_prfaas == pytest.approx(2.45, rel=0.03)
    assert at_paper.theta_d == pytest.approx(6.25, rel=0.03)
    assert at_paper.lambda_max == pytest.approx(2.45, rel=0.02)
    assert at_paper.lambda_max / capacity(HOMOGENEOUS, lengths, 131072, None).lambda_max == pytest.approx(
        1.16, rel=0.01
    )


@pytest.mark.parametrize("lengths", [LENGTHS, CLOSED])
def test_true_capacity_is_below_the_paper_s(lengths: Distribution) -> None:
    """With E[T(L)] for T(E[L]) the naive system sustains 2.33 requests per second, not 2.45.

    Short prompts alone cost less than in proportion, so below 8K the difference turns round.
    """
    assert capacity(NAIVE, lengths, 0, None, "mean_of_times").lambda_max == pytest.approx(2.33, abs=0.005)
    for threshold in (19400, 60000):
        printed = capacity(PAPER, lengths, threshold, 100e9)
        true = capacity(PAPER, lengths, threshold, 100e9, "mean_of_times")
        assert true.theta_prfaas < printed.theta_prfaas
        assert true.theta_p < printed.theta_p
        assert (true.theta_d, true.share_long) == (printed.theta_d, printed.share_long)
    short = capacity(PAPER, lengths, 5000, 100e9, "mean_of_times")
    assert short.theta_p > capacity(PAPER, lengths, 5000, 100e9).theta_p


@pytest.mark.parametrize("egress_bps", [None, 8e9])
def test_true_capacity_has_a_best_threshold_of_its_own(egress_bps: float | None) -> None:
    """The search finds the best threshold in the true convention, too: none on a grid gives more."""
    found = best_threshold(PAPER, LENGTHS, egress_bps, convention="mean_of_times")
    best = capacity(PAPER, LENGTHS, found, egress_bps, "mean_of_times").lambda_max
    scanned = max(
        capacity(PAPER, LENGTHS, t, egress_bps, "mean_of_times").lambda_max for t in range(1000, 131072, 1000)
    )
    assert best >= 0.995 * scanned


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


@pytest.mark.parametrize(
    ("gbps", "threshold", "n_p", "lambda_max"),
    [
        (12, 19500, 3, 3.19),
        (10, 25000, 4, 3.03),
        (8, 28500, 4, 2.63),
        (5, 41500, 5, 2.24),
        (2, 65000, 5, 1.60),
        (1, 97000, 6, 1.56),
    ],
)
def test_wan_oracle_with_roles_converted(gbps: float, threshold: int, n_p: int, lambda_max: float) -> None:
    """Where the PD cluster may be divided anew, split and throughput are the oracle's for each egress rate.

    So is the threshold, but on a plateau, where decode limits and any of a range is as good (1 Gbps).
    """
    found = best_allocation(PAPER, LENGTHS, gbps * 1e9)
    assert (found.n_p, found.n_d) == (n_p, 8 - n_p)
    assert found.lambda_max == pytest.approx(lambda_max, rel=0.02)
    oracle = capacity(replace(PAPER, n_p=n_p, n_d=8 - n_p), LENGTHS, threshold, gbps * 1e9)
    assert oracle.lambda_max == pytest.approx(found.lambda_max, rel=0.02)
    if oracle.lambda_max < oracle.theta_d:
        assert found.threshold_tokens == pytest.approx(threshold, abs=max(500, 0.03 * threshold))


def test_best_allocation_is_the_paper_s() -> None:
    """The search ends at the paper's splits: 3 of 8 instances prefill with PrfaaS, 9 of 12 without."""
    found = best_allocation(PAPER, LENGTHS, 100e9)
    assert (found.n_p, found.n_d) == (3, 5)
    assert found.threshold_tokens == pytest.approx(19400, abs=500)
    assert found.lambda_max == pytest.approx(3.24, rel=0.02)
    alone = best_allocation(HOMOGENEOUS, LENGTHS, None)
    assert (alone.threshold_tokens, alone.n_p, alone.n_d) == (131072, 9, 3)


@pytest.mark.parametrize("convention", ["time_of_mean", "mean_of_times"])
@pytest.mark.parametrize("gbps", [1, 4, 9, 100])
def test_best_allocation_agrees_with_a_full_scan(gbps: float, convention: Convention) -> None:
    """No split and threshold on the paper's grid gives noticeably more, whatever split it starts from."""
    found = best_allocation(replace(PAPER, n_p=7, n_d=1), LENGTHS, gbps * 1e9, convention)
    assert found.n_p + found.n_d == 8
    divided = replace(PAPER, n_p=found.n_p, n_d=found.n_d)
    threshold = best_threshold(divided, LENGTHS, gbps * 1e9, convention=convention)
    sustained = capacity(divided, LENGTHS, threshold, gbps * 1e9, convention).lambda_max
    assert (found.threshold_tokens, found.lambda_max) == (threshold, sustained)
    scanned = max(
        capacity(replace(PAPER, n_p=n, n_d=8 - n), LENGTHS, t, gbps * 1e9, convention).lambda_max
        for n in range(8)
        for t in range(1000, 131073, 1000)
    )
    assert found.lambda_max >= 0.995 * scanned


def test_one_instance_decodes_at_least() -> None:
    """The only instance of a cluster decodes and everything is offloaded; without one there is no answer."""
    assert best_allocation(replace(PAPER, n_p=1, n_d=0), LENGTHS, None).n_p == 0
    with pytest.raises(ValueError, match="without instances"):
        best_allocation(replace(PAPER, n_p=0, n_d=0), LENGTHS, None)


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


@pytest.mark.parametrize(
    "tokens",
    [
        [32768] * 512,
        [8192] * 512,
        [131072] * 512,
        [2000] * 256 + [32768] * 256,
        [1000] * 384 + [131072] * 128,
        [2000] * 480 + [32768] * 32,
        [65536] * 512,
        [16000] * 10 + [16049] * 500,
    ],
)
@pytest.mark.parametrize("egress_bps", [None, 8e9, 2e9])
def test_requests_of_one_length_go_to_the_better_side(tokens: list[int], egress_bps: float | None) -> None:
    """No threshold divides equal lengths: they go where more is sustained, and rounding moves none."""
    lengths = Lengths.from_quantiles(tokens)
    system = replace(PAPER, output_tokens=64)
    found = capacity(system, lengths, best_threshold(system, lengths, egress_bps), egress_bps).lambda_max
    ends = {0, *tokens, *(one - 1 for one in tokens), 131072}
    best = max(capacity(system, lengths, end, egress_bps).lambda_max for end in ends)
    assert found == pytest.approx(best, rel=1e-6)
