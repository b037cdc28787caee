"""A log of decisions as a policy: read once, checked against the requests, and followed to the letter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from agents.config import Log, RecordedRoute, RecordedState
from agents.policies import recorded
from agents.policies.view import Request, State
from testbed import manifest, replay
from testbed.errors import ScenarioError
from testbed.plan import Plan
from testbed.resolve import load_and_resolve, own_policy
from testbed.resolve.findings import Findings
from testbed.tables import TABLES
from tests.unit.policy_bench import CONFIG, view
from tests.unit.test_replay import INTERVALS, LENGTHS, decisions_of, plan_with, record_run
from tests.unit.test_resolve import BASE

HERE = RecordedRoute(
    route="pd", threshold_tokens=5, reason="short", cache="best", compress=False, order_s=1.5
)
MOVED = RecordedState(
    threshold_tokens=7, capacity_bps=8e9, reason="the link", regime="abundant", prefill_instances=2
)
AFTER = RecordedState(
    threshold_tokens=7, capacity_bps=None, reason="", regime="scarce", prefill_instances=None
)
LOG = Log(routes={"3": HERE}, states=(MOVED, AFTER))


def test_each_request_goes_where_the_log_says() -> None:
    """With cache, compression, order, threshold and reason."""
    config = replace(CONFIG, log=LOG)
    decision = recorded.route(config, recorded.start(config), view(1.0), Request("3", 100, 8))
    assert (decision.route, decision.cache, decision.order_s) == ("pd", "best", 1.5)
    assert (decision.threshold_tokens, decision.reason, decision.compress) == (5, "short", False)
    with pytest.raises(KeyError):
        recorded.route(config, recorded.start(config), view(1.0), Request("4", 100, 8))


def test_each_interval_changes_the_state_as_it_did() -> None:
    """In order, and when the log is over nothing changes any more."""
    config = replace(CONFIG, log=LOG)
    states = [recorded.start(config)]
    for _ in range(4):
        states.append(recorded.update(config, states[-1], view(1.0)))
    assert states[0].threshold_tokens == CONFIG.threshold_tokens
    assert states[1] == State(7, 8e9, "the link", 1, "abundant", 2)
    assert states[2] == State(7, None, "the link", 2, "scarce", None)
    assert states[2] == states[3] == states[4]


def test_a_log_is_needed_and_parameters_are_not() -> None:
    """Both are said."""
    with pytest.raises(ValueError, match="recorded needs a log"):
        recorded.start(CONFIG)
    with pytest.raises(ValueError, match="recorded takes no parameters"):
        recorded.start(replace(CONFIG, log=LOG, params={"gain": 1.0}))


TOKENS = [one.input_tokens for one in load_and_resolve(BASE)[1].requests]
COUNT = len(TOKENS)


def decisions(numbers: range, **changes: Any) -> pl.DataFrame:
    """A table of decisions that places these requests in the PD cluster, and has one interval."""
    of_route = {
        "kind": "route",
        "route": "pd",
        "threshold_tokens": 9,
        "reason": "r",
        "cache": "own",
        "compress": False,
    }
    rows = [
        of_route
        | {
            "t_s": 0.1,
            "step": number,
            "id": number,
            "uncached_tokens": TOKENS[number] - 5,
            "cached_pd_tokens": 5,
        }
        | changes
        for number in numbers
    ]
    rows.append({"kind": "control", "step": 10**6, "threshold_tokens": 8, "reason": "", "regime": "scarce"})
    schema = TABLES["decisions"]
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def planned(log: Path, *overrides: str) -> Plan:
    """The plan of the base scenario with this log."""
    options = ("policy.name=recorded", f"policy.log={log}", *overrides)
    return load_and_resolve(BASE, overrides=options)[1]


def refused(log: Path, *overrides: str) -> str:
    """The message with which that is refused."""
    with pytest.raises(ScenarioError) as caught:
        planned(log, *overrides)
    return str(caught.value)


@pytest.mark.parametrize("form", ["run", "file"])
def test_the_plan_has_the_log_in_it(tmp_path: Path, form: str) -> None:
    """From a run directory or a file; with the digest of the file; the plan's own file says the same."""
    file = tmp_path / "record/decisions.parquet"
    file.parent.mkdir()
    decisions(range(COUNT)).write_parquet(file)
    plan = planned(tmp_path if form == "run" else file)
    assert plan.policy.log is not None
    assert set(plan.policy.log.routes) == {str(number) for number in range(COUNT)}
    assert [state.threshold_tokens for state in plan.policy.log.states] == [8]
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan
    assert len(manifest._policy(plan)["policy"]["log_sha256"]) == 64


def test_requests_that_the_log_does_not_have_are_refused(tmp_path: Path) -> None:
    """How many, and the first of them."""
    file = tmp_path / "decisions.parquet"
    decisions(range(3, 5)).write_parquet(file)
    said = refused(file)
    assert f"policy.log: does not place {COUNT - 2} of {COUNT} requests: 0, 1, 2, 5, 6, ..." in said
    assert "the log of a run with the same requests" in said


def test_a_log_of_other_requests_is_refused(tmp_path: Path) -> None:
    """One of another seed has the same ids, of prompts with other lengths."""
    file = tmp_path / "decisions.parquet"
    decisions(range(COUNT)).with_columns(
        cached_pd_tokens=pl.when(pl.col("id") == 1).then(6).otherwise(pl.col("cached_pd_tokens"))
    ).write_parquet(file)
    assert f"policy.log: has other lengths of 1 of {COUNT} requests: 1" in refused(file)


def test_a_log_that_sends_requests_to_nobody_is_refused(tmp_path: Path) -> None:
    """Before the run, where the cluster has no prefill."""
    file = tmp_path / "decisions.parquet"
    decisions(range(COUNT), route="prfaas").write_parquet(file)
    said = refused(file, "clusters.prfaas.instances=0")
    assert f"sends {COUNT} requests to prfaas, where no instance does prefill" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop("cache", "step"), "has no column step, cache"),
        (lambda table: table.with_columns(cache=pl.lit("all")), "is damaged: Invalid enum value 'all'"),
        (
            lambda table: table.with_columns(threshold_tokens=pl.lit(None)),
            "is damaged: Expected `int`, got `null`",
        ),
    ],
)
def test_a_table_of_something_else_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    """Named with what is wrong."""
    file = tmp_path / "decisions.parquet"
    change(decisions(range(COUNT))).write_parquet(file)
    assert said in refused(file)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    """No file, no Parquet, and a log that nobody asked for."""
    assert f"policy.log: there is no file {tmp_path}/record/decisions.parquet" in refused(tmp_path)
    file = tmp_path / "text.parquet"
    file.write_text("no parquet")
    assert f"{file} cannot be read" in refused(file)
    assert "policy.log: has no effect on prfaas" in refused(tmp_path, "policy.name=prfaas")


def test_a_recorded_run_is_decided_again(tmp_path: Path) -> None:
    """A dispatcher with the log of another one's run takes its decisions, and a replay finds the same."""
    first = record_run(tmp_path / "first", plan_with("bandwidth_aware"))
    table = decisions_of(first)
    assert table.filter(pl.col("kind") == "route")["route"].n_unique() == 2
    findings = Findings(load_and_resolve(BASE)[0].source)
    read = own_policy._read_log(first.path / "record/decisions.parquet", findings)
    assert read is not None
    assert read[1] == {str(number): LENGTHS[number % len(LENGTHS)] for number in range(INTERVALS)}
    plan = plan_with("recorded")
    plan = msgspec.structs.replace(plan, policy=msgspec.structs.replace(plan.policy, log=read[0]))
    again = decisions_of(record_run(tmp_path / "again", plan))
    columns = ["id", "route", "cache", "compress", "order_s", "threshold_tokens", "reason"]
    routes = [one.filter(pl.col("kind") == "route").sort("id").select(columns) for one in (table, again)]
    assert routes[0].equals(routes[1])
    assert replay.replay(plan, again).differences == ()
