"""Schedulers of a user's own in whole runs: one that is slow, one that breaks, and a log of decisions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from testbed.kernel.uml import Uml
from tests.e2e.commands import SCENARIOS, Ended, call, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]

BREAKS = """\
from agents.policies.view import State, by_length


class Breaks:
    def start(self, config):
        return State(config.threshold_tokens, None, "")

    def route(self, config, state, view, request):
        if request.id == "5":
            raise KeyError("the sixth request")
        return by_length(state.threshold_tokens, request)

    def update(self, config, state, view):
        return state
"""


def results(ended: Ended) -> dict[str, dict[str, object]]:
    """The results of a verdict, by what kind they are of."""
    verdict = json.loads((ended.run / "verdict.json").read_bytes())
    return {result["kind"]: result for result in verdict["results"]}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A run of the scheduler that is too slow."""
    return run(tmp_path_factory.mktemp("slow"), SCENARIOS / "slow_scheduler.yaml")


def test_a_slow_scheduler_fails_for_its_reaction(slow: Ended) -> None:
    """FAIL, and the sentence has the signal, how long it took, and what was allowed."""
    assert slow.code == 1, slow.output
    reaction = results(slow)["reaction"]
    assert reaction["status"] == "FAIL"
    assert "threshold_tokens crossed 22,000 tokens after" in str(reaction["sentence"])
    assert "(allowed 3 s)" in str(reaction["sentence"])
    assert slow.manifest["policy"]["sha256"].keys() == {"slow_scheduler.py"}


def test_the_log_of_a_run_gives_the_same_run(slow: Ended, tmp_path: Path) -> None:
    """Every request goes where it went, at the same virtual moment, to the same end."""
    options = ("--set", "policy.name=recorded", "--set", f"policy.log={slow.run}")
    again = run(tmp_path, SCENARIOS / "slow_scheduler.yaml", *options)
    assert again.code == 1, again.output
    assert again.table("requests").equals(slow.table("requests"))
    assert again.manifest["record_digest"] == slow.manifest["record_digest"]
    code, said = call(tmp_path, "testbed.replay", again.run)
    assert (code, "the same answers" in said) == (0, True), said


def test_a_policy_that_breaks_fails_the_run(tmp_path: Path) -> None:
    """FAIL with the cause, not UNKNOWN; what was placed before goes on, what comes after is told why."""
    (tmp_path / "breaks.py").write_text(BREAKS, encoding="utf-8")
    shutil.copy(SCENARIOS / "small.yaml", tmp_path)
    ended = run(tmp_path / "out", tmp_path / "small.yaml", "--set", "policy.name=breaks:Breaks")
    assert ended.code == 1, ended.output
    found = results(ended)
    said = "asked about request 5: route() raised KeyError('the sixth request') at breaks.py:10"
    assert said in str(found["policy"]["sentence"])
    assert found["ledger"]["status"] == "PASS"
    requests = ended.table("requests")
    assert requests["state"].to_list() == ["completed"] * 5 + ["failed"] * (requests.height - 5)
    assert all("the policy failed" in cause for cause in requests["cause"].drop_nulls())
    assert ended.table("decisions").filter(pl.col("kind") == "failed").height == 1
    code, said = call(tmp_path, "testbed.replay", ended.run)
    assert (code, "the same answers" in said) == (0, True), said
