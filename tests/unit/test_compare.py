"""Comparing values: intervals that cover, directions that are right, tolerances that are read and kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compare import bootstrap, differences, plans, worse
from testbed.compare.differences import Compared
from testbed.compare.tolerances import DEFAULT, Tolerance, Tolerances, parse
from testbed.errors import ScenarioError
from testbed.metrics import METRICS
from tests.unit.synthetic_plan import expectation, make_plan

TTFT = Compared("ttft_s.p90", "", "s", "up")
SHARE = Compared("offloaded_share", "", "ratio", None)
RATE = Compared("throughput_per_s", "", "requests/s", "down")
SAMPLES = 200

values = st.floats(0, 1e12, allow_subnormal=False)


@pytest.mark.parametrize("runs", [6, 12])
@pytest.mark.parametrize("skewed", [False, True], ids=["normal", "exponential"])
def test_the_interval_covers_the_true_difference_as_often_as_it_says(runs: int, skewed: bool) -> None:
    """95 % of all intervals hold the truth; a little less of a few runs, and where values are skewed."""
    random = np.random.default_rng(7)
    held = 0
    for _ in range(SAMPLES):
        world = random.normal(50, 10, runs)
        noise = random.exponential(2, runs) if skewed else random.normal(2, 1, runs)
        found = bootstrap.resampled(world.tolist(), (world + noise).tolist(), paired=True)
        assert found is not None
        interval = found.difference()
        held += interval.low <= 2 <= interval.high
    assert (0.85 if skewed else 0.9) <= held / SAMPLES <= 0.99


def test_unpaired_runs_have_wider_intervals() -> None:
    """What pairs share drops out of their difference, and stays in that of runs that are no pairs."""
    random = np.random.default_rng(1)
    world = random.normal(50, 10, 12)
    first, second = world.tolist(), (world + random.normal(2, 1, 12)).tolist()
    widths = []
    for paired in (True, False):
        found = bootstrap.resampled(first, second, paired=paired)
        assert found is not None
        interval = found.difference()
        widths.append(interval.high - interval.low)
    assert widths[1] > 5 * widths[0]


def test_intervals_come_out_the_same_each_time() -> None:
    """No randomness but the fixed seed."""
    sides = ([1.0, 2.0, 4.0, 8.0, 9.0], [2.0, 2.0, 5.0, 7.0, 12.0])
    once, again = (bootstrap.resampled(*sides, paired=True) for _ in range(2))
    assert once is not None
    assert again is not None
    assert once.difference() == again.difference()
    assert once.relative() == again.relative()


@pytest.mark.parametrize(("freedom", "value"), [(4, 2.7764), (9, 2.2622), (19, 2.0930), (199, 1.9720)])
def test_quantiles_of_t_are_those_of_the_tables(freedom: int, value: float) -> None:
    """Printed tables of Student's t, 97.5 %."""
    assert bootstrap.t_quantile(0.975, freedom) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("runs", [1, 2, 4])
def test_few_runs_have_no_interval(runs: int) -> None:
    """No interval is made up where resampling cannot give one; means are judged."""
    row = differences.row(TTFT, [1.0] * runs, [1.2] * runs, Tolerances(), paired=True)
    assert row.interval is None
    assert row.relative_interval is None
    assert row.judged == "worse"


@given(values, values, st.sampled_from([TTFT, RATE]))
def test_one_run_each_is_judged_by_its_direction(first: float, second: float, one: Compared) -> None:
    """More seconds are worse and more requests are better, by more than the tolerance of the first value."""
    row = differences.row(one, [first], [second], Tolerances(), paired=True)
    sign = 1 if one.worse == "up" else -1
    beyond = sign * (second - first) - 0.05 * first
    assert (row.judged == "worse") == (beyond > 0)
    assert row.difference == second - first


@settings(max_examples=30)
@given(st.lists(values, min_size=5, max_size=8))
def test_what_is_the_same_is_within_any_tolerance(both: list[float]) -> None:
    """Equal pairs differ by nothing, and surely; without pairs only their means are known to be equal."""
    none = Tolerances(Tolerance("0%"))
    row = differences.row(TTFT, both, both, none, paired=True)
    assert (row.difference, row.interval, row.judged) == (0, bootstrap.Interval(0, 0), "within")
    row = differences.row(TTFT, both, both, none, paired=False)
    assert row.difference == 0
    assert row.judged in ("within", "unclear")


def test_with_many_runs_only_what_is_sure_is_worse() -> None:
    """The interval as a whole has to lie on one side of the tolerance; else more seeds would tell."""
    first = [10.0] * 6
    for second, judged in (
        ([11.0, 11.1, 10.9, 11.2, 11.0, 10.8], "worse"),
        ([9.0, 14.0, 9.0, 13.0, 9.0, 12.0], "unclear"),
        ([8.0, 12.0, 8.0, 12.0, 8.0, 12.0], "unclear"),
        ([10.1, 10.2, 10.0, 10.1, 9.9, 10.0], "within"),
        ([8.0, 8.1, 8.2, 7.9, 8.0, 8.1], "better"),
    ):
        assert differences.row(TTFT, first, second, Tolerances(), paired=True).judged == judged


def test_what_never_happened_is_worse_than_any_number() -> None:
    """A reaction that stopped happening in one run of many fails; the others' times still have a mean."""
    first, second = [0.4, 0.5, 0.6], [0.4, math.inf, 0.6]
    generous = Tolerances(Tolerance("900%", share=9))
    row = differences.row(TTFT, first, second, generous, paired=True)
    assert (row.judged, row.never, row.runs) == ("worse", (0, 1), (2, 2))
    assert row.first == row.second == pytest.approx(0.5)
    assert differences.row(TTFT, second, first, generous, paired=True).judged == "better"
    assert differences.row(TTFT, [math.inf], [math.inf], generous, paired=True).judged == "within"


def test_what_one_side_did_not_measure_is_not_judged() -> None:
    """Nothing is taken for zero, or for infinity; a pair without one of its values is left out."""
    row = differences.row(TTFT, [None], [3.0], Tolerances(), paired=True)
    assert (row.judged, row.first, row.second, row.difference) == ("not measured", None, 3.0, None)
    assert differences.row(TTFT, [None], [math.inf], Tolerances(), paired=True).judged == "not measured"
    row = differences.row(TTFT, [1.0, None, 3.0], [1.0, 50.0, 3.0], Tolerances(), paired=True)
    assert (row.judged, row.runs, row.difference) == ("within", (2, 2), 0)


def test_a_metric_without_a_direction_is_judged_only_when_asked() -> None:
    """Where requests are placed is the policy's business; named by a tolerance, both ways count."""
    named = Tolerances(None, {"offloaded_share": Tolerance("10%", share=0.1)})
    assert differences.row(SHARE, [0.5], [0.9], Tolerances(), paired=True).judged == "shown"
    for second, judged in ((0.9, "worse"), (0.1, "worse"), (0.52, "within")):
        assert differences.row(SHARE, [0.5], [second], named, paired=True).judged == judged
    assert differences.row(TTFT, [1.0], [9.0], named, paired=True).judged == "shown"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("ttft_s.p90", "up"), ("queue_s.max", "up"), ("health.down_s.max", "up"), ("requests.failed", "up"),
        ("requests.completed", "down"), ("requests.completed_ratio", "down"), ("throughput_per_s", "down"),
        ("cache.hit_ratio", "down"), ("retrans_ratio.mean", "up"), ("link.a_to_b.drops", "up"),
        ("link.b_to_a.backlog_bytes.max", "up"), ("link.a_to_b.utilisation", None), ("n_prefill.mean", None),
        ("link.a_to_b.lost_packets", None), ("offloaded_share", None), ("threshold_tokens.mean", None),
        ("transfers.failed", "up"), ("transfers.wan_goodput_bps.mean", "down"), ("ledger.violations", "up"),
    ],
)  # fmt: skip
def test_the_direction_that_is_worse(name: str, way: str | None) -> None:
    """Slower, lost and sent again are worse; less completed is; what a policy chooses is neither."""
    assert name in METRICS
    assert worse.of_metric(name) == way


def test_an_expectation_gets_worse_towards_its_bound() -> None:
    """Also where its metric has no direction of its own; later reactions and more turns are worse."""
    for bounds, way in (({"high": 0.9}, "up"), ({"low": 0.1}, "down"), ({"low": 0.1, "high": 0.9}, None)):
        assert worse.of_expectation(expectation("bound", "offloaded_share", "share", **bounds)) == way
    for kind, within_ns in (("reaction", 1), ("recovery", 1), ("stability", None)):
        timed = expectation(kind, "threshold_tokens", low=1, within_ns=within_ns)
        assert worse.of_expectation(timed) == "up"


def test_everything_compared_by_default_is_a_metric() -> None:
    """Of the vocabulary of expectations, with one value for a run."""
    assert [name for name in worse.COMPARED if "bound" not in METRICS[name].kinds] == []


def test_tolerances_are_read() -> None:
    """Shares for all or for one, amounts with the unit of the metric or of what the expectation measures."""
    units = {"a = b": "s"}
    assert parse([], units) == Tolerances(DEFAULT)
    assert parse(["10%"], units) == Tolerances(Tolerance("10%", share=0.1))
    read = parse(
        ["ttft_s.p90=300ms", "goodput_bps.mean = 1gbit", "link.a_to_b.backlog_bytes.max=2MB",
         "requests.failed=2 requests", "offloaded_share=0.1", "a = b=150%"],
        units,
    )  # fmt: skip
    assert read.everywhere is None
    amounts = {name: (one.absolute, one.share) for name, one in read.named.items()}
    assert amounts == {
        "ttft_s.p90": (0.3, 0), "goodput_bps.mean": (1e9, 0), "link.a_to_b.backlog_bytes.max": (2e6, 0),
        "requests.failed": (2, 0), "offloaded_share": (0.1, 0), "a = b": (0, 1.5),
    }  # fmt: skip


def test_bad_tolerances_are_all_refused_at_once() -> None:
    """Each with what was found and what would do."""
    bad = ["5", "5%", "6%", "ttft_s.p90=3", "ttft.p90=5%", "threshold_tokens=5%", "requests.failed=-1",
           "ttft_s.p99=x%", "ttft_s.p50=5%", "ttft_s.p50=6%"]  # fmt: skip
    with pytest.raises(ScenarioError) as caught:
        parse(bad, {})
    texts = [str(problem) for problem in caught.value.problems]
    assert [text.splitlines()[0] for text in texts] == [
        '--tolerance 5: "5" has no %',
        "--tolerance 6%: a second tolerance for all",
        "--tolerance ttft_s.p90=3: 3 has no unit",
        '--tolerance ttft.p90=5%: unknown name "ttft.p90"',
        '--tolerance threshold_tokens=5%: unknown name "threshold_tokens"',
        '--tolerance requests.failed=-1: "-1" is no number of requests',
        '--tolerance ttft_s.p99=x%: "x%" is no share',
        "--tolerance ttft_s.p50=6%: a second tolerance of ttft_s.p50",
    ]
    assert "e2e_s.p90" in texts[3]


def test_plans_are_told_apart_value_by_value() -> None:
    """Every leaf with its path; a few of each field; not where expectations stand in the file."""
    plan = make_plan(requests=4)
    other = make_plan(requests=4, seed=8)
    found = plans.differences(plan, other)
    assert {one.path.partition("[")[0] for one in found} == {"requests"}
    assert len(found) == plans.SHOWN_OF_EACH
    assert found[-1].more > 0
    assert plans.differences(plan, make_plan(requests=4)) == []
    assert str(plans.differences(plan, make_plan(requests=3))[0]).startswith("requests is 4 entries in the")
