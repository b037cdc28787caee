"""A scheduler of one's own, and programs of one's own, from the command line to the verdict."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import polars as pl
import pytest

from testbed.kernel.uml import Uml
from testbed.plan import Plan
from testbed.replay import replay
from tests.e2e.commands import PROJECT, run

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
