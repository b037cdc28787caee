"""A scheduler of one's own, and programs of one's own, from the command line to the verdict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import polars as pl
import pytest

from testbed.kernel.uml import Uml
from testbed.plan import Plan
from testbed.programs import CUT, NOBODY, OUTPUT_BYTES
from testbed.replay import replay
from testbed.verdict import Verdict
from tests.e2e.commands import PROJECT, SCENARIOS, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(Uml().probe("virtual")), reason="no UML kernel: make setup"),
]


@pytest.mark.skipif(shutil.which("lua5.4") is None, reason="no lua5.4: make setup")
def test_a_scheduler_in_lua_decides_as_the_one_in_python(tmp_path: Path) -> None:
    """It follows the link, and asked the same questions the policy in Python gives the same answers: routes,
    reasons, thresholds, and estimates of the link to the last bit.
    """
    ended = run(tmp_path, PROJECT / "scenarios/own/http_scheduler.yaml", "--no-report")
    assert ended.code == 0, ended.output
    decisions = ended.table("decisions")
    moved = decisions.filter(pl.col("kind") == "control")["threshold_tokens"].n_unique()
    assert moved >= 3
    plan = Plan.read(ended.run / "plan.json")
    ours = msgspec.structs.replace(plan.policy, name="bandwidth_aware", service=None)
    replayed = replay(msgspec.structs.replace(plan, policy=ours), decisions)
    assert (replayed.routes, replayed.intervals > 150) == (len(plan.requests), True)
    assert replayed.differences == ()
    events = ended.table("events")
    assert events.filter(pl.col("name") == "scheduler")["kind"].to_list() == [
        "program_started",
        "program_ready",
    ]


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="no iperf3: make setup")
def test_iperf3_measures_the_link(tmp_path: Path) -> None:
    """Unmodified, in virtual time; its own report and the link's counters say the same."""
    scenario = PROJECT / "scenarios/own/iperf3.yaml"
    ended = run(tmp_path, scenario, "--no-report")
    assert ended.code == 0, ended.output
    report = json.loads((ended.run / "programs/client.out").read_bytes())
    assert report["end"]["sum_received"]["bits_per_second"] > 9e9
    slower = run(tmp_path, scenario, "--no-report", "--set", "link.a_to_b.rate=5gbit")
    assert slower.code == 1, slower.output


def test_each_program_is_judged_for_what_it_did(tmp_path: Path) -> None:
    """The run goes on to its end whatever they do, and the verdict names those that failed, and why."""
    ended = run(tmp_path, SCENARIOS / "programs.yaml", "--no-report")
    assert ended.code == 1, ended.output
    (result,) = [one for one in Verdict.read(ended.run / "verdict.json").results if one.kind == "programs"]
    assert result.sentence == (
        "silent was not ready within 10 s: it never listened on port 80; last words: nothing; "
        "wrong ended with status 7, not 0; last words: out of luck; "
        "endless was still running at the end of the run, without `until`"
    )
    events = ended.table("events").filter(pl.col("name") == "deaf")
    assert events["kind"].to_list() == ["program_started", "program_stopped"]
    said = ended.run / "programs"
    assert (said / "fine.out").read_text().split()[:4] == ["from", "beside", "the", "scenario"]
    assert (said / "fine.out").read_text().split()[5] == "b1"
    assert (said / "polite.out").read_text() == "bye\n"
    assert (said / "loud.out").stat().st_size == OUTPUT_BYTES + len(CUT)
    assert (said / "loud.err").read_text() == "done\n"
    assert (said / "locked.out").read_text() == f"{NOBODY}\n"
