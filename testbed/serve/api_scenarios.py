"""Endpoints about scenarios: what there is, what it says, whether it would run, and running it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from testbed.errors import Problem, ScenarioError
from testbed.serve import scenarios
from testbed.serve.checks import Dropped
from testbed.serve.looking import Brief, Found, Question
from testbed.serve.parts import Failed, Given, Parts, errors, shown
from testbed.serve.shapes import (
    Asked,
    Checked,
    LastRun,
    PlanOut,
    ScenarioOut,
    ScenarioText,
    Started,
    StartOut,
)
from testbed.units import NS_PER_S

router = APIRouter(prefix="/api/v1", tags=["scenarios"])
START_NUMBERS = 2**31


@router.get("/scenarios", responses=errors())
def list_scenarios(parts: Given) -> list[ScenarioOut]:
    """Every scenario, with the newest verdict on it."""
    parts.indexer.touch()
    last = parts.history.last_of_each()
    found = []
    for one in parts.scenarios.known():
        run = last.get(one.name)
        newest = run and LastRun(
            directory=run["directory"],
            state=run["state"],
            note=run["note"],
            started_s=run["started_s"],
            changed=run["changed"],
            edited=bool(run["scenario_sha256"]) and run["scenario_sha256"] != one.sha256,
        )
        found.append(
            ScenarioOut(
                path=one.path, name=one.name, question=one.question, control=one.control, last=newest or None
            )
        )
    return found


@router.get("/scenarios/{path:path}", responses=errors(404))
def get_scenario(path: str, parts: Given) -> ScenarioText:
    """The text of a scenario."""
    return ScenarioText(path=path, text=_text(_file(parts, path)))


@router.post("/check", responses=errors(404, 415))
async def check(request: Request, asked: Asked, parts: Given) -> Checked:
    """What a scenario would run, or all that is wrong with it. Nothing is run but its policy, on trial."""
    found, lines = await _look(request, asked, parts)
    return Checked(
        problems=[shown(problem, line) for problem, line in zip(found.problems, lines, strict=True)],
        warnings=found.warnings,
        plan=None if found.plan is None else _brief(found.plan),
    )


@router.post("/runs", status_code=202, tags=["runs"], responses=errors(404, 409, 415))
async def start_run(request: Request, asked: Asked, parts: Given, response: Response) -> Started:
    """Start a run of a scenario, or of a text, which is kept among the drafts: no scenario is overwritten."""
    found, lines = await _look(request, asked, parts, gives_way=False)
    if found.plan is None:
        raise Failed(422, *found.problems, lines=lines)
    number = await asyncio.to_thread(_start, asked, parts)
    response.headers["location"] = f"/api/v1/starts/{number}"
    return Started(start=number)


def _start(asked: Asked, parts: Parts) -> int:
    path = None if asked.scenario is None else _file(parts, asked.scenario)
    options = [f"--set={one}" for one in asked.overrides]
    options += [] if asked.seed is None else [f"--seed={asked.seed}"]
    options += [] if asked.scale is None else [f"--scale={asked.scale!r}"]
    try:
        file = path if asked.text is None else parts.scenarios.draft(asked.text, path)
        assert file is not None, "an empty question was refused"
        return parts.processes.start(file, options)
    except ScenarioError as error:
        raise Failed(409, *error.problems) from None


@router.get("/starts/{start}", tags=["runs"], responses=errors(404))
def get_start(start: Annotated[int, Field(ge=1, lt=START_NUMBERS)], parts: Given) -> StartOut:
    """What has become of a start: its run directory as soon as it has one."""
    found = parts.processes.get(start)
    if found is None:
        raise Failed(
            404, Problem(f"start {start}", "this server has not started it", next_step="see /api/v1/runs")
        )
    if found.run is not None:
        parts.history.put(found.run)
    return StartOut(start=start, run=found.run, exit_code=found.exit_code, said=found.said())


async def _look(
    request: Request, asked: Asked, parts: Parts, *, gives_way: bool = True
) -> tuple[Found, list[int | None]]:
    """What was found, and the lines of its problems."""
    question = await asyncio.to_thread(_question, asked, parts)
    try:
        # The body has been read: what comes next is that the client leaves.
        found = await parts.checks.check(question, request.receive(), gives_way=gives_way)
    except Dropped as dropped:
        raise Failed(dropped.status, dropped.problem) from None
    name = asked.scenario or scenarios.UNNAMED
    return found, [scenarios.line_of(problem, name) for problem in found.problems]


def _question(asked: Asked, parts: Parts) -> Question:
    if asked.scenario is None and asked.text is None:
        raise Failed(422, Problem("body", "names no scenario", "scenario, text, or both"))
    path = None if asked.scenario is None else _file(parts, asked.scenario)
    text = asked.text
    if text is None:
        assert path is not None, "one of the two is there"
        text = _text(path)
    return parts.scenarios.question(text, path, seed=asked.seed, scale=asked.scale, overrides=asked.overrides)


def _brief(plan: Brief) -> PlanOut:
    return PlanOut(
        name=plan.name,
        question=plan.question,
        seed=plan.seed,
        scale=plan.scale,
        duration_s=plan.duration_ns / NS_PER_S,
        requests=plan.requests,
        expectations=plan.expectations,
    )


def _file(parts: Parts, path: str) -> Path:
    found = parts.scenarios.find(path)
    if found is None:
        raise Failed(404, Problem(f"scenario {path}", "there is none", next_step="see /api/v1/scenarios"))
    return found


def _text(path: Path) -> str:
    try:
        return scenarios.text_of(path)
    except ScenarioError as error:
        raise Failed(422, *error.problems) from None
    except OSError as error:
        raise Failed(404, Problem(path.name, f"cannot be read: {error.strerror}")) from None
