"""The paper's experiments: the oracle against the paper's numbers, and rows from runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.profiles import MODELS
from testbed.paper import models, table6, wan
from testbed.paper.printed import LINKS_GBPS, TABLE_6
from tests.unit.paper_runs import table6_runs, wan_run


@pytest.mark.parametrize(
    ("gbps", "loop", "tokens", "n_p", "per_s"),
    [
        (12, "both", 19_600, 3, 3.20),
        (10, "both", 25_000, 4, 3.03),
        (8, "both", 28_500, 4, 2.63),
        (5, "both", 41_500, 5, 2.24),
        (2, "both", 65_000, 5, 1.60),
        (1, "both", 97_000, 6, 1.56),
        (12, "short", 19_600, 3, 3.20),
        (10, "short", 21_600, 3, 2.80),
        (8, "short", 24_400, 3, 2.38),
        (5, "short", 31_400, 3, 1.76),
        (2, "short", 51_200, 3, 1.13),
        (1, "short", 70_000, 3, 0.92),
    ],
)
def test_the_oracle_is_what_the_paper_s_model_gives(
    gbps: float, loop: wan.Loop, tokens: int, n_p: int, per_s: float
) -> None:
    """Roles exactly, requests/s within 1.5 %, the threshold within 3 % or where another one does as well."""
    oracle = wan.oracle(gbps, loop)
    assert oracle.n_p == n_p
    assert oracle.lambda_max == pytest.approx(per_s, rel=0.015)
    near = oracle.threshold_tokens == pytest.approx(tokens, rel=0.03)
    assert near or oracle.least_tokens <= tokens <= oracle.most_tokens
    assert 0.95 * oracle.lambda_max < oracle.true_lambda_max <= 1.001 * oracle.lambda_max


def test_the_oracle_is_worth_more_than_the_fixed_threshold() -> None:
    """Behind every link that binds, and with both loops more than with one."""
    for gbps in LINKS_GBPS[1:]:
        short, both = wan.oracle(gbps, "short"), wan.oracle(gbps, "both")
        assert wan.fixed_lambda(gbps) < 1.02 * short.true_lambda_max <= 1.02 * both.true_lambda_max
    assert wan.fixed_lambda(5) < 0.8 * wan.oracle(5, "short").true_lambda_max


def test_the_runs_of_the_links_say_what_each_one_changes() -> None:
    """Two for each link, under names that tell them apart; the load is a little more than the best can do."""
    wanted = wan.wanted(Path("scenarios/paper"), (5, 1))
    assert [one.name for one in wanted] == ["5gbps-short", "5gbps-both", "1gbps-short", "1gbps-both"]
    best = wan.oracle(5, "both").true_lambda_max
    assert set(wanted[1].overrides) == {
        "link.a_to_b.rate=5gbit",
        "duration=600s",
        "policy.name=prfaas",
        f"workload.rate={1.08 * best:.3f}/s",
        "expect=[]",
    }
    assert "policy.name=bandwidth_aware" in wanted[0].overrides
    assert wanted[0].scenario == Path("scenarios/paper/wan.yaml")


def test_what_a_run_came_to() -> None:
    """The medians of its last third, what it completed there, and since when it stayed near."""
    found = wan.found(
        wan_run(2.0, [(0, 19_400, 3), (50, 31_000, 4), (150, 41_000, 5), (500, 42_000, 5)]), 600.0
    )
    assert (found.threshold_tokens, found.n_p, found.throughput_per_s) == (41_500, 5, 2.0)
    assert found.settled_s == 150.0
    restless = wan.found(
        wan_run(2.0, [(0, 41_000, 5), (450, 41_000, 4), (460, 41_000, 5), (580, 60_000, 5)]), 600.0
    )
    assert (restless.threshold_tokens, restless.n_p) == (41_000, 5)
    assert (restless.settled_s, restless.steady_share) == (0.0, pytest.approx(0.95))
    never = wan.found(
        wan_run(2.0, [(t_s, 41_000 if t_s % 100 else 60_000, 5) for t_s in range(0, 600, 50)]), 600.0
    )
    assert never.settled_s == 599.75
    roles = wan.found(wan_run(2.0, [(0, 41_000, 3), (300, 41_000, 5)]), 600.0)
    assert roles.settled_s == 300.0
    calm = wan.found(wan_run(2.0, [(0, 41_000, 5)]), 600.0)
    assert (calm.settled_s, calm.steady_share) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("tokens", "share", "holds"),
    [
        (41_800, 1.0, (True, True)),
        (37_400, 0.951, (True, True)),
        (36_900, 1.0, (False, True)),
        (46_500, 1.0, (False, True)),
        (41_800, 0.949, (True, False)),
    ],
)
def test_a_row_holds_within_its_tolerances(tokens: float, share: float, holds: tuple[bool, bool]) -> None:
    """10 % of the threshold, 5 % of what the oracle's choice sustains."""
    oracle = wan.Oracle(41_800, 5, 2.24, 2.23, 41_500, 42_000)
    row = wan.Row(5, "both", oracle, wan.Found(tokens, 5, share * 2.23, 100.0, 1.0))
    assert (row.threshold_holds, row.throughput_holds) == holds


def test_a_threshold_on_the_plateau_holds() -> None:
    """Where decode limits, many thresholds are the best one."""
    oracle = wan.Oracle(89_400, 6, 1.5625, 1.5625, 88_000, 99_500)
    for tokens, holds in ((79_300, True), (79_100, False), (109_400, True), (109_500, False)):
        assert wan.Row(1, "both", oracle, wan.Found(tokens, 6, 1.5, 0.0, 1.0)).threshold_holds is holds


def test_table_6_has_printed_model_and_emulated_numbers() -> None:
    """Each quantity of each deployment, where it is printed, limiting or there at all."""
    rows = {(row.deployment, row.quantity): row for row in table6.rows(table6_runs())}
    prfaas, homogeneous, naive = (column.title for column in TABLE_6)
    theta = rows[prfaas, "theta PrfaaS, requests/s"]
    assert theta.printed == 1.61
    assert theta.emulated == pytest.approx(1.5, rel=0.01)
    assert theta.time_of_mean == pytest.approx(1.61, rel=0.03)
    assert theta.mean_of_times is not None
    assert theta.time_of_mean is not None
    assert theta.mean_of_times < theta.time_of_mean
    whole = rows[prfaas, "lambda max, requests/s"]
    assert whole.printed == 3.24
    assert whole.emulated == pytest.approx(3.0, rel=0.01)
    assert whole.time_of_mean == pytest.approx(3.24, rel=0.02)
    assert rows[prfaas, "ratio to homogeneous"].emulated == pytest.approx(1.5, rel=0.02)
    assert rows[prfaas, "offloaded share"].emulated == pytest.approx(0.5, abs=0.005)
    assert rows[prfaas, "offloaded share"].time_of_mean == pytest.approx(0.496, abs=0.005)
    assert rows[prfaas, "mean offloaded tokens"].emulated == 45_000
    egress = rows[prfaas, "egress, Gbps"]
    assert egress.printed == 13.0
    assert egress.emulated == pytest.approx(12.0), "the share of 100 Gbps"
    assert egress.time_of_mean == pytest.approx(12.0, rel=0.02)
    assert (homogeneous, "theta PrfaaS, requests/s") not in rows
    assert rows[homogeneous, "ratio to homogeneous"].emulated == 1.0
    assert (naive, "theta PD-P, requests/s") not in rows
    assert rows[naive, "lambda max, requests/s"].mean_of_times == pytest.approx(2.33, rel=0.02)
    assert all(row.emulated is None for row in rows.values() if row.quantity.startswith("theta PD-D"))


def test_ratios_are_checked_against_what_is_asked() -> None:
    """1.45 times the homogeneous deployment, 1.25 times the naive one."""
    good = table6.checks(table6_runs())
    assert [(round(one.measured, 1), one.least, one.holds) for one in good] == [
        (1.5, 1.45, True),
        (1.3, 1.25, True),
    ]
    assert [one.holds for one in table6.checks(table6_runs(2.2))] == [False, True]


def test_what_models_send_is_what_the_paper_prints() -> None:
    """A cluster of 512 GPUs within 3 % of each printed figure; the largest of the paper's models first."""
    rows = models.rows()
    assert {row.model for row in rows} == {*MODELS} - {"tiny_hybrid"}
    assert [row.cluster_gbps for row in rows] == sorted((row.cluster_gbps for row in rows), reverse=True)
    printed = {row.model: row for row in rows if row.printed_gbps}
    assert set(printed) == set(models.PRINTED_GBPS)
    assert all(row.cluster_gbps == pytest.approx(row.printed_gbps, rel=0.03) for row in printed.values())
