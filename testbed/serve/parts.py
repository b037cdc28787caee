"""What the endpoints work with, made once per server, and how they say what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Request
from fastapi.responses import JSONResponse

from testbed.errors import Problem
from testbed.serve import contained
from testbed.serve.checks import Checks
from testbed.serve.history import History
from testbed.serve.indexer import Indexer
from testbed.serve.live import Live
from testbed.serve.processes import Processes
from testbed.serve.scenarios import Scenarios
from testbed.serve.shapes import ProblemOut, Problems

Responses: TypeAlias = dict[int | str, dict[str, Any]]


@dataclass(frozen=True)
class Parts:
    """All that has state."""

    runs: Path
    token: str
    scenarios: Scenarios
    checks: Checks
    history: History
    indexer: Indexer
    live: Live
    processes: Processes

    def directory(self, run: str) -> Path:
        """The directory of a run; raises Failed(404)."""
        path = contained.run_directory(self.runs, run)
        if path is None or not (path / "plan.json").is_file():
            raise Failed(
                404, Problem(f"run {run}", "there is none with this name", next_step="see /api/v1/runs")
            )
        return path


class Failed(Exception):  # noqa: N818 - an answer, not an error of ours
    """An answer that is a list of problems."""

    def __init__(self, status: int, *problems: Problem, lines: Sequence[int | None] = ()) -> None:
        super().__init__(status)
        self.status = status
        numbers = [*lines, *[None] * len(problems)]
        self.problems = [shown(problem, line) for problem, line in zip(problems, numbers, strict=False)]


def shown(problem: Problem, line: int | None) -> ProblemOut:
    """A problem as the API has it."""
    return ProblemOut(
        where=problem.where,
        found=problem.found,
        allowed=problem.allowed,
        next_step=problem.next_step,
        line=line,
    )


def answer(status: int, problems: Sequence[ProblemOut]) -> JSONResponse:
    """The body of every answer that is an error."""
    return JSONResponse(Problems(problems=list(problems)).model_dump(), status)


async def parts_of(request: Request) -> Parts:
    found: Parts = request.app.state.parts
    return found


Given = Annotated[Parts, Depends(parts_of)]


def errors(*statuses: int) -> Responses:
    """For the OpenAPI document: what may go wrong at an endpoint, beside what may at all of them."""
    return {status: {"model": Problems} for status in _statuses(statuses)}


def errors_as_json(*statuses: int) -> Responses:
    """The same for an endpoint whose answers are not JSON when nothing goes wrong."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Problems"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in _statuses(statuses)
    }


def _statuses(more: Sequence[int]) -> list[int]:
    return sorted({401, 403, 413, 421, 422, 503, *more})
