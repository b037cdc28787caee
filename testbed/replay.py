"""`python -m testbed.replay RUN_DIR`: ask the policy again, from the record alone, and compare its answers.

Policies are pure, so the same questions in the same order get the same answers. With `--policy` another one
is asked instead: which requests would it have placed elsewhere? It sees what the first one's decisions led
to, so that this says how the two differ, not how a run with the other one would have gone.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agents import config as agents_config
from agents.dispatch import policy_config
from agents.policies import POLICIES, own
from agents.policies.failure import PolicyFailure
from agents.policies.find import HTTP, RECORDED, find
from agents.policies.guard import Guarded
from agents.policies.view import Config, Decision, Request, State, View
from agents.profiles import COMPRESSIONS, MODELS, PROFILES
from testbed.command import run_command
from testbed.errors import Problem, ScenarioError
from testbed.plan import Plan
from testbed.program import SCHEDULER
from testbed.report.__main__ import read_plan
from testbed.resolve.own_policy import load_own
from testbed.rundir import RunDir
from testbed.system import agent_config

if TYPE_CHECKING:
    import polars as pl

SHOWN: Final = 20
BROKE: Final = "broke:"
app = typer.Typer(add_completion=False)


class Difference(msgspec.Struct, frozen=True):
    """One answer that is not the recorded one."""

    t_s: float
    asked: str
    recorded: str
    answered: str


class Replayed(msgspec.Struct, frozen=True):
    """How often the policy was asked to place a request and to look at an interval, and what differs."""

    routes: int
    intervals: int
    differences: tuple[Difference, ...]


class _Seen(msgspec.Struct):
    view: View
    request: Request | None = None


SEEN: Final = msgspec.json.Decoder(_Seen)


def replay(plan: Plan, decisions: pl.DataFrame, policy: str | None = None) -> Replayed:
    """Ask `policy` (by default the plan's) everything that the table of decisions says was asked.

    Raises:
        ScenarioError: the record does not say what the policy saw, the plan names something that does not
            exist (any more), or the policy cannot serve this plan.
    """
    rows = decisions.sort("step").rows(named=True)
    asked = [row for row in rows if row["seen"] is not None or row["kind"] != "failed"]
    if not asked or asked[0]["step"] is None or any(row["seen"] is None for row in asked):
        problem = Problem(
            "record/decisions.parquet", "does not say what the policy saw", "a run with requests"
        )
        raise ScenarioError(problem)
    different = tuple(
        Difference(row["t_s"], about, recorded, answered)
        for row, about, recorded, answered in _answers(plan, asked, policy)
        if (recorded != answered if policy is None else _elsewhere(row, recorded, answered))
    )
    routes = sum(row["id"] is not None for row in asked)
    return Replayed(routes, len(asked) - routes, different)


def _elsewhere(row: dict[str, Any], recorded: str, answered: str) -> bool:
    """Whether another policy places a request otherwise, or breaks."""
    placed = row["kind"] == "route" and _place(recorded) != _place(answered)
    return placed or answered.startswith(BROKE)


def _answers(
    plan: Plan, rows: list[dict[str, Any]], other: str | None
) -> Iterator[tuple[dict[str, Any], str, str, str]]:
    """Each row with what was asked, and the recorded and the new answer as texts."""
    router = next(agent for agent in plan.agents if agent.role == "router")
    _refuse_unknown(plan, other or plan.policy.name)
    policy = _recorded_policy(plan) if other is None else _other_policy(other, plan)
    encoded = agent_config(plan, router, lambda host: host)
    settings = msgspec.json.decode(encoded, type=agents_config.Config)
    config = policy_config(settings)
    if other not in {None, plan.policy.name}:
        config = dataclasses.replace(config, params={})
    try:
        state = policy.start(config)
    except (ValueError, PolicyFailure) as error:
        where = "plan.json" if other is None else "--policy"
        raise ScenarioError(Problem(where, str(error), next_step=_start(plan))) from None
    for row in rows:
        seen = _seen(row, config)
        asked = "interval" if seen.request is None else f"request {seen.request.id}"
        try:
            if seen.request is not None:
                answer = _route(policy.route(config, state, seen.view, seen.request))
            else:
                state = policy.update(config, state, seen.view)
                answer = _state(state)
        except PolicyFailure as failure:
            yield row, asked, _recorded(row), f"{BROKE} {failure}"
            return  # as in a run
        yield row, asked, _recorded(row), answer


def _recorded_policy(plan: Plan) -> Guarded:
    """The run's own, from its plan, as it was then."""
    name, files = plan.policy.name, {path: file.text for path, file in plan.policy.files.items()}
    try:
        return find(name, files, plan.policy.service)
    except PolicyFailure as failure:
        raise ScenarioError(Problem("plan.json", f"{name}: {failure}")) from None


def _other_policy(name: str, plan: Plan) -> Guarded:
    """One that is asked for by name, as it is now, though the run's own may have had that name."""
    return load_own("--policy", name).made() if own.is_own(name) else find(name, {}, plan.policy.service)


def _refuse_unknown(plan: Plan, policy: str) -> None:
    """A run may be older than the names that this version has; ScenarioError with all that are missing."""
    profiles = dict.fromkeys(agent.profile for agent in plan.agents if agent.profile)
    known = (*POLICIES, RECORDED, *([] if plan.policy.service is None else [HTTP]))
    named: list[tuple[str, str, Collection[str]]] = [
        *([] if own.is_own(policy) else [("policy", policy, known)]),
        ("model", plan.model, MODELS),
        *(("profile", profile, {**PROFILES, **plan.profiles}) for profile in profiles),
    ]
    if plan.transport.compression:
        named.append(("compression", plan.transport.compression, COMPRESSIONS))
    problems = [
        Problem("plan.json", f"unknown {what} {name}", ", ".join(known))
        for what, name, known in named
        if name not in known
    ]
    if problems:
        raise ScenarioError(*problems)


def _seen(row: dict[str, Any], config: Config) -> _Seen:
    """What the policy was shown, if it can have been; ScenarioError naming the step when it cannot."""
    where = f"record/decisions.parquet, step {row['step']}"
    try:
        seen = SEEN.decode(row["seen"])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ScenarioError(Problem(where, f"seen is damaged: {error}")) from None
    longest = max(config.system.prfaas.max_tokens, config.system.pd.max_tokens)
    for request in (*(one.request for one in seen.view.placed), *([seen.request] if seen.request else [])):
        cached = (request.cached_prfaas_tokens, request.cached_pd_tokens)
        if not 0 <= min(cached) <= max(cached) < request.input_tokens <= longest:
            found = (
                f"seen is damaged: request {request.id} has {request.input_tokens} input tokens, "
                f"{cached[0]} and {cached[1]} of them cached"
            )
            raise ScenarioError(Problem(where, found, f"1 to {longest} tokens, and fewer of them cached"))
    return seen


def _place(answer: str) -> str:
    """Where a request goes and with what, without the reason."""
    return answer.partition(":")[0]


def _route(decision: Decision) -> str:
    packed = ", compressed" if decision.compress else ""
    return f"{decision.route}, {decision.cache} cache{packed}{_order(decision.order_s)}: {decision.reason}"


def _recorded(row: dict[str, Any]) -> str:
    if row["kind"] == "failed":
        return f"{BROKE} {row['reason']}"
    return _recorded_route(row) if row["kind"] == "route" else _recorded_state(row)


def _recorded_route(row: dict[str, Any]) -> str:
    packed = ", compressed" if row["compress"] else ""
    return f"{row['route']}, {row['cache']} cache{packed}{_order(row['order_s'])}: {row['reason']}"


def _order(order_s: float | None) -> str:
    return "" if order_s is None else f", in the place of {order_s} s"


def _state(state: State) -> str:
    return _words(state.threshold_tokens, state.capacity_bps, state.regime, state.prefill_instances)


def _recorded_state(row: dict[str, Any]) -> str:
    return _words(row["threshold_tokens"], row["capacity_bps"], row["regime"], row["prefill_instances"])


def _words(
    threshold_tokens: int, capacity_bps: float | None, regime: str, prefill_instances: int | None
) -> str:
    wanted = "" if prefill_instances is None else f", {prefill_instances} prefill instances"
    return f"threshold {threshold_tokens}, capacity {capacity_bps}, {regime}{wanted}"


@app.command(name="replay")
def replay_command(
    run_dir: Annotated[Path, typer.Argument(help="Such as runs/latest.", show_default=False)],
    policy: Annotated[
        str | None,
        typer.Option(help="Ask this one instead, with its default parameters.", show_default=False),
    ] = None,
) -> None:
    """Ask the policy of a run again. Exit code: 0 the same answers, 1 others, 3 not a run with requests."""
    from testbed import tables as record  # noqa: PLC0415 - half a second, which other commands do not need

    run = RunDir(run_dir)
    plan = read_plan(run)
    if policy is not None and policy not in POLICIES and not own.is_own(policy):
        allowed = f"{', '.join(POLICIES)}, or module:Class"
        raise ScenarioError(Problem("--policy", f"unknown policy {policy}", allowed))
    if not plan.policy.name:
        raise ScenarioError(Problem(str(run_dir), "a run without requests", "a run with a policy"))
    replayed = replay(plan, record.load(run)["decisions"], policy)
    _show(replayed, plan.policy.name, policy or plan.policy.name)
    raise typer.Exit(bool(replayed.differences))


def _start(plan: Plan) -> str:
    """How to bring up the service of a plan, for whoever asks it outside of a run."""
    commands = [shlex.join(one.command) for one in plan.programs if one.name == SCHEDULER]
    return f"start the service first, beside the scenario: {commands[0]}" if commands else ""


def _show(replayed: Replayed, recorded: str, asked: str) -> None:
    console = Console()
    count = len(replayed.differences)
    answers = "the same answers" if not count else f"{count} other answers"
    console.print(
        f"{replayed.routes} requests, {replayed.intervals} intervals: {answers}",
        markup=False,
        highlight=False,
    )
    if not count:
        return
    table = Table("time", "asked", f"{recorded}, recorded", asked)
    for one in replayed.differences[:SHOWN]:
        cells = (f"{one.t_s:.2f} s", one.asked, one.recorded, one.answered)
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    if count > SHOWN:
        console.print(f"and {count - SHOWN} more", highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(app, arguments)


if __name__ == "__main__":
    sys.exit(main())
