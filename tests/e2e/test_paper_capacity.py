"""Table 6 by emulation: measured capacities beside the model's."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from testbed import tables as record
from testbed.kernel.uml import Uml
from testbed.paper import table6
from testbed.paper.printed import TABLE_6
from testbed.rundir import RunDir
from tests.e2e.commands import PROJECT, call, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]
SCENARIOS = PROJECT / "scenarios/paper"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, pl.DataFrame]]:
    """The tables of the three deployments' runs; each passes, and its policy can be replayed."""
    found = {}
    for column in TABLE_6:
        out = tmp_path_factory.mktemp(column.scenario)
        ended = run(out, SCENARIOS / column.scenario, "--no-report")
        assert ended.code == 0, ended.output
        code, said = call(out, "testbed.replay", ended.run)
        assert code == 0, said
        found[column.scenario] = record.load(RunDir(ended.run))
    return found


def test_each_stage_completes_what_the_model_says(emulated: dict[str, dict[str, pl.DataFrame]]) -> None:
    """Every emulated figure is within 3 % of the model's with the mean of the times."""
    for row in table6.rows(emulated):
        if row.emulated is not None:
            assert row.emulated == pytest.approx(row.mean_of_times, rel=0.03), row


def test_prfaas_beats_the_other_deployments(emulated: dict[str, dict[str, pl.DataFrame]]) -> None:
    """At least 1.45 times the homogeneous and 1.25 times the naive deployment, each at its best."""
    assert all(check.holds for check in table6.checks(emulated)), table6.checks(emulated)


def test_a_deployment_with_other_roles_fails(tmp_path: Path) -> None:
    """The control: two prefill instances and six for decode cannot complete what table 6 says."""
    roles = ("--set", "clusters.pd.prefill=2", "--set", "clusters.pd.decode=6", "--set", "duration=220s")
    windows = ("--set", "expect=[{bound: throughput_per_s, from: 100s, to: 200s, min: 3.03}]")
    ended = run(tmp_path, SCENARIOS / "table6_prfaas.yaml", "--no-report", *roles, *windows)
    assert ended.code == 1, ended.output
