"""Replaying: the record of a real dispatcher is enough to get the same answers again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pytest

from agents.config import Cache, Config
from agents.dispatch import Dispatcher
from agents.policies import POLICIES
from testbed import replay
from testbed import tables as record
from testbed.errors import ScenarioError
from testbed.plan import Plan
from testbed.rundir import RunDir
from testbed.system import agent_config
from tests.unit.fake_agents import NETWORK, FakeAgent, fake_agents, serve_all
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run

WAIT_S = 20
INTERVALS = 30
LENGTHS = (30_000, 1_000, 19_400, 19_401, 60_000, 8_000, 131_072)
DEAF = ("homogeneous", "naive_heterogeneous", "static_threshold", "learned")
"""Policies that have no estimate of the link."""
PROFILED = (1500, 4000, 8000, 12_000, 20_000, 30_000, 45_000, 90_000)


def plan_with(policy: str, params: dict[str, float] | None = None) -> Plan:
    """A plan whose policy looks every 5 ms, with caches and a compression."""
    plan = make_plan(requests=4)
    return msgspec.structs.replace(
        plan,
        model="internal_1t",
        cache=Cache(prfaas_bytes=10**10, pd_bytes=10**10),
        transport=msgspec.structs.replace(plan.transport, compression="cachegen"),
        policy=msgspec.structs.replace(
            plan.policy, name=policy, interval_ns=5_000_000, params=params or {}, length_quantiles=PROFILED
        ),
    )


def settings_of(plan: Plan, journal: Path) -> Config:
    """What the router of this plan is told, with every host at an address of this process."""
    hosts = [agent.host for agent in plan.agents]
    router = next(agent for agent in plan.agents if agent.role == "router")
    encoded = agent_config(plan, router, lambda host: f"{NETWORK}.{hosts.index(host) + 11}")
    config = msgspec.json.decode(encoded, type=Config)
    return msgspec.structs.replace(config, journal=str(journal / "router.jsonl"))


def record_run(directory: Path, plan: Plan) -> RunDir:
    """Let a dispatcher place requests of two tenants while its link is full; the run has nothing else."""
    run = RunDir(directory)
    run.journal.mkdir(parents=True)
    plan.write(run.plan)
    asyncio.run(_dispatch(settings_of(plan, run.journal)))
    record.build(run, plan)
    return run


async def _dispatch(settings: Config) -> None:
    async with fake_agents(settings) as agents, asyncio.timeout(WAIT_S):
        dispatcher = Dispatcher(settings)
        await dispatcher.start()
        serving = asyncio.create_task(serve_all(agents, 4))
        try:
            for number in range(INTERVALS):
                _full_link(agents["prefill-a1"], number)
                tokens = LENGTHS[number % len(LENGTHS)]
                dispatcher.submit(number, tokens, 8, f"tenant-{number % 2}", tuple(range(tokens // 512)))
                await asyncio.sleep(0.005)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            dispatcher.close()


def _full_link(agent: FakeAgent, number: int) -> None:
    """About 8 Gbps leave, and a backlog stands."""
    agent.send(
        "signals", acked_bytes=5_000_000 * number, retrans_bytes=1000 * number, backlog_bytes=10**9,
        rtt_s=0.05, min_rtt_s=0.0115, active=4,
    )  # fmt: skip


def decisions_of(run: RunDir) -> pl.DataFrame:
    return record.load(run)["decisions"]


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """One run with a policy that places by length, for all who only read it."""
    return record_run(tmp_path_factory.mktemp("replay") / "run", plan_with("static_threshold"))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_questions_get_the_same_answers(tmp_path: Path, policy: str) -> None:
    """Any policy, with all that it learns on the way, from the record alone."""
    plan = plan_with(policy)
    decisions = decisions_of(record_run(tmp_path / "run", plan))
    replayed = replay.replay(plan, decisions)
    assert replayed.differences == ()
    assert replayed.routes == INTERVALS
    assert replayed.intervals == decisions.height - INTERVALS > 5
    estimates = decisions["capacity_bps"].drop_nulls().n_unique()
    assert estimates or policy in DEAF, "so that there is something to compare"


def changed(decisions: pl.DataFrame, step: int, **values: Any) -> pl.DataFrame:
    """The table with other values in one row."""
    here = pl.col("step") == step
    return decisions.with_columns(
        pl.when(here).then(pl.lit(value)).otherwise(pl.col(name)).cast(decisions.schema[name]).alias(name)
        for name, value in values.items()
    )


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("route", {"route": "pd"}),
        ("route", {"reason": "because"}),
        ("route", {"cache": "best"}),
        ("route", {"compress": True}),
        ("control", {"threshold_tokens": 19_500}),
        ("control", {"capacity_bps": 8e9}),
        ("control", {"regime": "abundant"}),
    ],
)
def test_an_answer_that_was_another_one_is_named(static: RunDir, kind: str, values: dict[str, Any]) -> None:
    """One row of the record, changed: its time, what was asked, and both answers."""
    decisions = decisions_of(static)
    row = decisions.filter(
        (pl.col("kind") == kind) & (pl.col("route").is_null() | (pl.col("route") == "prfaas"))
    )[3].row(0, named=True)
    (difference,) = replay.replay(
        plan_with("static_threshold"), changed(decisions, row["step"], **values)
    ).differences
    assert difference.t_s == row["t_s"]
    assert difference.asked == (f"request {row['id']}" if kind == "route" else "interval")
    assert difference.recorded != difference.answered


def test_another_policy_is_asked_the_same(static: RunDir) -> None:
    """With its own defaults: only what it would have placed elsewhere differs, not reasons, not intervals."""
    plan, decisions = plan_with("static_threshold"), decisions_of(static)
    there = replay.replay(plan, decisions, "naive_heterogeneous").differences
    local = decisions.filter((pl.col("kind") == "route") & (pl.col("route") == "pd")).height
    assert len(there) == local > 0
    assert all(one.answered.startswith("prfaas") for one in there)
    home = replay.replay(plan, decisions, "homogeneous").differences
    moved = [one for one in home if one.recorded.startswith("prfaas")]
    assert moved
    assert all(one.answered.startswith("pd") for one in moved)


def test_the_parameters_of_one_policy_are_not_given_to_another(tmp_path: Path) -> None:
    """A policy without parameters can be asked about a run of one with some."""
    plan = plan_with("bandwidth_aware", {"dead_band": 0.05})
    decisions = decisions_of(record_run(tmp_path / "run", plan))
    assert replay.replay(plan, decisions).differences == ()
    assert replay.replay(plan, decisions, "homogeneous").routes == INTERVALS


def test_a_record_without_what_was_seen_is_refused(tmp_path: Path, static: RunDir) -> None:
    """One that does not have it, one that lost a part of it, and an empty one."""
    plan = make_plan(requests=4)
    without = record.build(write_run(tmp_path / "run", plan, tcp_lines=64), plan)["decisions"]
    seen = decisions_of(static)
    for decisions in (without, changed(seen, 3, seen=None), seen.clear()):
        with pytest.raises(ScenarioError, match="does not say what the policy saw"):
            replay.replay(plan_with("static_threshold"), decisions)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ([], 0, f"{INTERVALS} requests, "),
        (["--policy", "homogeneous"], 1, "homogeneous"),
        (["--policy", "homogenous"], 3, "--policy: unknown policy homogenous"),
        (["--policy", "naive_heterogeneous"], 1, "static_threshold"),
    ],
)
def test_the_command_ends_with_its_code(
    static: RunDir, capsys: pytest.CaptureFixture[str], options: list[str], code: int, says: str
) -> None:
    """0 for the same answers, 1 for others, 3 for what cannot be asked."""
    assert replay.main([str(static.path), *options]) == code
    said = capsys.readouterr()
    assert says in said.out + said.err


def test_a_policy_that_cannot_serve_the_plan_is_refused(
    tmp_path: Path, static: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy that compresses, of a run that had nothing to compress with; a run without requests."""
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.record.symlink_to(static.record)
    plan = plan_with("static_threshold")
    plain = msgspec.structs.replace(plan, transport=msgspec.structs.replace(plan.transport, compression=""))
    plain.write(run.plan)
    assert replay.main([str(run.path), "--policy", "compression"]) == 3
    assert "compression needs a compression profile" in capsys.readouterr().err
    bulk = msgspec.structs.replace(plan, policy=msgspec.structs.replace(plan.policy, name=""))
    bulk.write(run.plan)
    assert replay.main([str(run.path)]) == 3
    assert "a run without requests" in capsys.readouterr().err
    assert replay.main([str(tmp_path / "nothing")]) == 3
    strange = msgspec.structs.replace(plan.policy, params={"gain": 2.0})
    msgspec.structs.replace(plan, policy=strange).write(run.plan)
    assert replay.main([str(run.path)]) == 3
    assert "plan.json: static_threshold takes no parameters" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["policy", "model", "profile", "compression"])
def test_a_plan_of_names_that_are_gone_is_refused(static: RunDir, what: str) -> None:
    """A policy, a model, a profile, a compression of another version: what it is, and what there is."""
    plan, replace = plan_with("static_threshold"), msgspec.structs.replace
    gone = {
        "policy": replace(plan, policy=replace(plan.policy, name="gone")),
        "model": replace(plan, model="gone"),
        "profile": replace(
            plan, agents=tuple(replace(one, profile=one.profile and "gone") for one in plan.agents)
        ),
        "compression": replace(plan, transport=replace(plan.transport, compression="gone")),
    }
    with pytest.raises(ScenarioError, match=rf"^plan\.json: unknown {what} gone\n    allowed: \w+"):
        replay.replay(gone[what], decisions_of(static))


def without(seen: dict[str, Any], *path: str) -> dict[str, Any]:
    """The same without one field."""
    first, *rest = path
    inner = {first: without(seen[first], *rest)} if rest else {}
    return {name: value for name, value in seen.items() if name != first} | inner


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no JSON": lambda _: msgspec.Raw(b"{half of i"),
    "deep": lambda _: msgspec.Raw(b'{"view":' + b"[" * 10_000),
    "no view": lambda seen: without(seen, "view"),
    "no egress": lambda seen: without(seen, "view", "egress"),
    "no length": lambda seen: without(seen, "request", "input_tokens"),
    "nothing to compute": lambda seen: seen | {"request": seen["request"] | {"input_tokens": 0}},
    "all cached": lambda seen: (
        seen | {"request": seen["request"] | {"cached_pd_tokens": seen["request"]["input_tokens"]}}
    ),
    "too long": lambda seen: seen | {"request": seen["request"] | {"input_tokens": 10**9}},
    "one of those placed": lambda seen: (
        seen | {"view": seen["view"] | {"placed": [{"request": seen["request"] | {"input_tokens": 0},
                                                    "route": "pd"}]}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_view_that_cannot_have_been_is_refused(static: RunDir, damage: str) -> None:
    """The file and the step are named, whatever is wrong with what the policy was shown."""
    decisions = decisions_of(static)
    step, seen = decisions.filter(pl.col("kind") == "route")[3].select("step", "seen").row(0)
    damaged = msgspec.json.encode(DAMAGES[damage](msgspec.json.decode(seen))).decode()
    plan = plan_with("static_threshold")
    with pytest.raises(ScenarioError, match=rf"^record/decisions\.parquet, step {step}: seen is damaged: "):
        replay.replay(plan, changed(decisions, step, seen=damaged))


def test_a_policy_that_breaks_later_is_not_a_wrong_argument(
    static: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in what it answers is its own, and is its last answer, to an interval as well."""
    fixed = POLICIES["static_threshold"]

    def update(*_: object) -> None:
        raise ValueError("math domain error")

    broken = SimpleNamespace(start=fixed.start, route=fixed.route, update=update)
    monkeypatch.setitem(POLICIES, "broken", broken)
    (last,) = replay.replay(plan_with("static_threshold"), decisions_of(static), "broken").differences
    assert last.asked == "interval"
    assert last.answered.startswith("broke: update() raised ValueError('math domain error') at test_replay")
    assert replay.main([str(static.path), "--policy", "broken"]) == 1
