"""What the field reports, as scenarios: each passes, and fails with what its first lines say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import PROJECT, call, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

SCENARIOS = sorted((PROJECT / "scenarios/failures").glob("*.yaml"))
CAMPAIGN = PROJECT / "scenarios/faults"
SEEDS, RUNS = "1-6", 6
"""As many as there is time for in every test; docs/campaign.md says what more of them gave."""


def control(scenario: Path) -> list[str]:
    """The options with which a scenario must fail, from its own words."""
    (options,) = re.findall(
        r"^# .*(?:must FAIL: |FAILs with )(--set .*)$", scenario.read_text(), re.MULTILINE
    )
    return shlex.split(options)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_it_passes(tmp_path: Path, scenario: Path) -> None:
    """The system as it is holds what the scenario asks, and its ledger balances."""
    ended = run(tmp_path, scenario, "--no-report")
    assert ended.code == 0, ended.output


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_its_control_fails(tmp_path: Path, scenario: Path) -> None:
    """FAIL by an expectation of its own, whatever the ledger says; not UNKNOWN, the link was as asked."""
    ended = run(tmp_path, scenario, "--no-report", *control(scenario))
    assert ended.code == 1, ended.output
    verdict = json.loads((ended.run / "verdict.json").read_bytes())
    failed = [one["name"] for one in verdict["results"] if one["status"] == "FAIL"]
    assert set(failed) - {"ledger"}, ended.output


def test_a_campaign_of_drawn_faults_loses_nothing(tmp_path: Path) -> None:
    """Whatever the seeds draw, everything is accounted for."""
    code, said = call(tmp_path, "testbed.sweep", CAMPAIGN, "--seeds", SEEDS, "--jobs", "1", "--out", tmp_path)
    assert code == 0, said
    statuses = [one["status"] for one in json.loads((tmp_path / "sweep.json").read_bytes())["runs"]]
    assert statuses == ["PASS"] * RUNS


def test_a_campaign_finds_a_planted_bug(tmp_path: Path) -> None:
    """KV that stays pinned when its transfer fails: the seed that shows it is named, and shows it again."""
    planted = ("--set", "flaws=[no_lease]")
    sweep = ("testbed.sweep", CAMPAIGN, "--seeds", SEEDS, *planted, "--jobs", "1", "--out", tmp_path)
    code, said = call(tmp_path, *sweep)
    assert code == 1, said
    (command, *_) = re.findall(r"python -m testbed\.run (.*)", said)
    ended = run(tmp_path / "again", *shlex.split(command), "--no-report")
    assert ended.code == 1, ended.output
    results = json.loads((ended.run / "verdict.json").read_bytes())["results"]
    failed = {one["metric"] for one in results if one["status"] == "FAIL"}
    assert failed & {"pools.end_bytes", "ledger.violations"}, ended.output
