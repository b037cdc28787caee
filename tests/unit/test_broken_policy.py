"""A policy that breaks while requests are under way: said once, nobody asked again, everything ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from agents import router
from agents.policies import POLICIES
from agents.policies.failure import PolicyFailure
from agents.policies.view import Config, Decision, Request, State, View
from testbed import broken_policy, expect, replay
from testbed import tables as record
from testbed.rundir import RunDir
from testbed.verdict import EXIT_CODES
from tests.unit.agent_config import SHORT_TOKENS, make_config
from tests.unit.dispatch_bench import AT_HOME, Bench, Scenario, play_on, until
from tests.unit.fake_agents import NETWORK, fake_agents
from tests.unit.own_policies import policy_text
from tests.unit.synthetic_plan import make_plan
from tests.unit.synthetic_run import write_run
from tests.unit.test_replay import plan_with, record_run

GOOD = State(0, None, "as told")


@dataclass
class Breaking:
    """A policy that answers well, until its answers run out; how often it was asked."""

    routes: list[Any] = field(default_factory=lambda: [AT_HOME] * 99)
    states: Iterator[Any] = field(default_factory=lambda: iter([GOOD] * 9999))
    asked: int = 0

    def start(self, config: Config) -> State:  # noqa: ARG002 - a policy's signature
        return self._told(GOOD)

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:  # noqa: ARG002 - same
        return self._told(self.routes.pop(0))

    def update(self, config: Config, state: State, view: View) -> State:  # noqa: ARG002 - same
        return self._told(next(self.states))

    def _told(self, told: Any) -> Any:
        self.asked += 1
        if isinstance(told, BaseException):
            raise told
        return told


@pytest.fixture
def breaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a scenario with such a policy, looking every 20 ms."""

    def run(scenario: Scenario, broken: Any, **changes: Any) -> None:
        monkeypatch.setitem(POLICIES, "breaking", broken)
        told = {"policy": "breaking", "interval_ns": 20_000_000, **changes}
        scheduling = msgspec.structs.replace(make_config("router", tmp_path).scheduling, **told)
        play_on(tmp_path, scenario, scheduling=scheduling)

    return run


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (KeyError("oops"), "route() raised KeyError('oops') at test_broken_policy.py:"),
        (None, "route() answers None (NoneType) instead of a Decision"),
        (Decision("here", 0, ""), "route() answers route 'here' (str), not prfaas or pd"),  # type: ignore[arg-type]
        (PolicyFailure("nobody answers"), "nobody answers"),
    ],
)
def test_a_request_that_cannot_be_placed_is_refused_with_the_cause(
    breaking: Callable[..., None], last: Any, said: str
) -> None:
    """So are all that follow, without another question; one that was placed before comes to its end."""
    policy = Breaking(routes=[AT_HOME, last])

    async def scenario(bench: Bench) -> None:
        first = bench.submit(SHORT_TOKENS)
        for _ in range(3):
            with pytest.raises(PolicyFailure, match=r"^the policy failed: ") as caught:
                bench.submit(SHORT_TOKENS)
            assert said in str(caught.value)
        asked = policy.asked
        (line,) = bench.journal("policy_failed")
        assert said in line["cause"]
        assert (line["id"], line["seen"]["request"]["id"]) == (1, "1")
        await bench.decode_all(first)
        await asyncio.sleep(0.05)
        assert policy.asked == asked
        assert len(bench.journal("decision")) == 1
        assert bench.held() == []
        steps = [one["step"] for one in bench.journal("control")]
        assert line["step"] not in steps

    breaking(scenario, policy)


def test_an_interval_that_breaks_the_policy_is_noted_once(breaking: Callable[..., None]) -> None:
    """Requests are refused from then on, and what hangs is still given up."""
    policy = Breaking(states=iter([GOOD, State(-1, None, "")]))

    async def scenario(bench: Bench) -> None:
        await until(lambda: bool(bench.journal("policy_failed")))
        asked = policy.asked
        with pytest.raises(PolicyFailure, match=r"update\(\) answers threshold_tokens -1"):
            bench.submit(SHORT_TOKENS)
        await asyncio.sleep(0.1)
        (line,) = bench.journal("policy_failed")
        assert line.get("id") is None
        assert len(bench.journal("control")) == 1
        assert policy.asked == asked

    breaking(scenario, policy)


def test_a_policy_that_cannot_start_refuses_everything(breaking: Callable[..., None]) -> None:
    """The router serves all the same: every request is told why."""
    policy = Breaking()
    policy.start = lambda config: None  # type: ignore[method-assign,assignment,return-value] # noqa: ARG005

    async def scenario(bench: Bench) -> None:
        with pytest.raises(PolicyFailure, match=r"start\(\) answers None"):
            bench.submit(SHORT_TOKENS)
        assert len(bench.journal("policy_failed")) == 1

    breaking(scenario, policy)


def test_a_policy_from_its_text(breaking: Callable[..., None]) -> None:
    """What the configuration holds is what runs, and what breaks has its line."""
    text = policy_text(route="raise OSError(request.id)")

    async def scenario(bench: Bench) -> None:
        with pytest.raises(PolicyFailure, match=r"route\(\) raised OSError\('0'\) at mine\.py:9"):
            bench.submit(SHORT_TOKENS)

    breaking(scenario, None, files={"mine.py": text}, policy="mine:Mine")


def test_the_client_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP 503 with the cause, as for anything that the system cannot do now."""
    monkeypatch.setitem(POLICIES, "breaking", Breaking(routes=[KeyError("oops")]))
    settings = make_config("router", tmp_path, NETWORK)
    scheduling = msgspec.structs.replace(settings.scheduling, policy="breaking")

    async def scenario() -> httpx.Response:
        app = router.build(msgspec.structs.replace(settings, scheduling=scheduling))
        async with (
            fake_agents(settings),
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as http,
        ):
            return await http.post("/v1/completions", json={"prompt_tokens": 100, "max_tokens": 4})

    answer = asyncio.run(scenario())
    assert answer.status_code == 503
    assert "the policy failed: route() raised KeyError('oops')" in answer.json()["error"]["message"]


def test_a_broken_policy_is_a_failure_whatever_else_is_unknown(tmp_path: Path) -> None:
    """The line of the verdict has the moment, the request and the cause; the exit code is 1."""
    plan = make_plan(requests=4)
    run = write_run(tmp_path / "run", plan, tcp_lines=64)
    with (run.journal / "router.jsonl").open("a", encoding="utf-8") as journal:
        line = {"kind": "policy_failed", "t_ns": 7_000_000_000, "step": 9, "id": 3, "cause": "it crashed"}
        journal.write(msgspec.json.encode(line).decode() + "\n")
    tables = record.build(run, plan)
    result = broken_policy.judge(tables)
    assert result is not None
    assert (result.name, result.status) == ("policy", "FAIL")
    assert result.sentence.endswith(" s, asked about request 3: it crashed")
    verdict = expect.judge(plan, {**tables, "links": tables["links"].clear()}, [])
    assert verdict.status == "FAIL"
    assert "the policy failed" in verdict.note
    assert EXIT_CODES[verdict.status] == 1
    assert broken_policy.judge({**tables, "decisions": tables["decisions"].clear()}) is None


class OddTenant(Breaking):
    """It does not know one of the tenants."""

    def route(self, config: Config, state: State, view: View, request: Request) -> Decision:  # noqa: ARG002 - same
        """KeyError for that one."""
        return {"tenant-0": AT_HOME}[request.tenant]


def test_a_replay_breaks_at_the_same_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has what the policy was shown when it broke; asked again it breaks again, as it did."""
    monkeypatch.setitem(POLICIES, "breaking", OddTenant())
    plan, run = plan_with("breaking"), RunDir(tmp_path / "run")
    with pytest.raises(PolicyFailure, match="tenant-1"):
        record_run(run.path, plan)
    decisions = record.build(run, plan)["decisions"]
    assert decisions["kind"].to_list().count("failed") == 1
    replayed = replay.replay(plan, decisions)
    assert replayed.differences == ()
    assert replayed.routes == 2
    monkeypatch.setitem(POLICIES, "breaking", POLICIES["homogeneous"])
    last = replay.replay(plan, decisions).differences[-1]
    assert last.recorded.startswith("broke: route() raised KeyError('tenant-1')")
