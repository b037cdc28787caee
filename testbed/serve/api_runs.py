"""Endpoints about runs: history, one run, watching and stopping it, its files, two runs compared, trends."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, StreamingResponse

from testbed.errors import Problem, TestbedError
from testbed.rundir import RunDir
from testbed.serve import contained, curves
from testbed.serve.handed import Handed
from testbed.serve.parts import Failed, Given, errors, errors_as_json
from testbed.serve.shapes import (
    Comparison,
    FileOut,
    MetricOut,
    Point,
    ResultOut,
    RunDetail,
    RunName,
    RunOut,
    Runs,
    Signals,
    State,
    Told,
    Trend,
    TrendMetric,
)
from testbed.serve.summaries import read
from testbed.verdict import Verdict

router = APIRouter(prefix="/api/v1", tags=["runs"])
MOST_ROWS = 200
MOST_POINTS = 1000
LAST_ROW = 10_000_000
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; font-src data:; frame-ancestors 'none'"
)
"""A report is one page with its own scripts: it may run them, but is no page of this server to a browser."""
Word = Annotated[str, Query(max_length=200)]


@router.get("/runs", responses=errors())
def list_runs(  # noqa: PLR0917 - FastAPI passes them by name
    parts: Given,
    query: Annotated[str, Query(max_length=200, description="Words that all occur in a run's texts.")] = "",
    name: Annotated[str, Query(max_length=200, description="The scenario's.")] = "",
    state: State | Literal[""] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 50,
    offset: Annotated[int, Query(ge=0, le=LAST_ROW)] = 0,
) -> Runs:
    """The history, newest first."""
    parts.indexer.touch()
    page = parts.history.page(query=query, name=name, state=state, limit=limit, offset=offset)
    return Runs(
        runs=[RunOut.model_validate(row) for row in page.rows], total=page.total, limit=limit, offset=offset
    )


@router.get("/runs/{run}", responses=errors(404))
def get_run(run: RunName, parts: Given) -> RunDetail:
    """One run: verdict, what was measured, and its files."""
    directory = parts.directory(run)
    parts.history.put(run)
    row = parts.history.get(run)
    if row is None:
        raise Failed(404, Problem(f"run {run}", "holds no plan that can be read"))
    verdict = read(RunDir(directory).verdict, Verdict)
    return RunDetail(
        run=RunOut.model_validate(row),
        trust=[] if verdict is None else list(verdict.trust),
        results=[
            ResultOut.model_validate({name: getattr(one, name) for name in ResultOut.model_fields})
            for one in (() if verdict is None else verdict.results)
        ],
        metrics=[MetricOut.model_validate(one) for one in parts.history.metrics_of(run)],
        files=[FileOut(name=name, size_bytes=size) for name, size in contained.listed(directory)],
    )


@router.post("/runs/{run}/stop", status_code=202, responses=errors(404, 409, 415))
def stop_run(run: RunName, parts: Given) -> Told:
    """Tell a run to end: it is judged by what it has. Told again, it leaves that, too."""
    parts.directory(run)
    if not parts.processes.stop(run):
        raise Failed(409, Problem(f"run {run}", "is not under way", "a run in the state RUNNING"))
    return Told(told=True)


@router.get(
    "/runs/{run}/events",
    response_class=StreamingResponse,
    responses={**errors_as_json(404), 200: {"content": {"text/event-stream": {}}}},
)
async def watch_run(run: RunName, parts: Given) -> StreamingResponse:
    """Server-sent events: `whole`, then `changes` as they come, and `end`."""
    parts.directory(run)
    _refuse_too_many(parts.live.full(run) or parts.live.crowded)
    return StreamingResponse(parts.live.events(run), media_type="text/event-stream")


@router.get("/runs/{run}/signals", responses=errors(404))
async def get_signals(run: RunName, parts: Given) -> Signals:
    """The same signals as of now, for programs that do not want events."""
    parts.directory(run)
    _refuse_too_many(parts.live.full(run))
    return Signals.model_validate(await parts.live.snapshot(run))


@router.get(
    "/runs/{run}/files/{file:path}",
    response_class=FileResponse,
    responses={**errors_as_json(404), 200: {"content": {media: {} for media in contained.MEDIA.values()}}},
)
def get_file(run: RunName, file: str, parts: Given) -> FileResponse:
    """One of the files that `GET /runs/{run}` lists; the report to be looked at, others to be kept."""
    path = contained.find(parts.directory(run), file)
    if path is None:
        allowed = "one of those that the run lists"
        raise Failed(404, Problem(f"file {file[:200]!r}", "is not there, or is not handed out", allowed))
    if path.name == "report.html":
        headers = {"content-security-policy": REPORT_POLICY}
        return Handed(path, media_type=contained.MEDIA[path.suffix], headers=headers)
    return Handed(path, media_type=contained.MEDIA[path.suffix], filename=f"{run}-{path.name}")


@router.get("/comparison", responses=errors(404, 409))
def compare_runs(first: RunName, second: RunName, parts: Given) -> Comparison:
    """Two judged runs beside each other, `first` being the baseline."""
    one, two = parts.directory(first), parts.directory(second)
    try:
        return Comparison.model_validate(_compared(one, two, _stamp(one), _stamp(two)))
    except TestbedError as error:
        raise Failed(409, *error.problems) from None


@router.get("/trends", responses=errors())
def list_trends(name: Word, parts: Given) -> list[TrendMetric]:
    """What can be followed over the runs of a scenario."""
    parts.indexer.touch()
    return [TrendMetric.model_validate(one) for one in parts.history.metric_names(name)]


@router.get("/trend", responses=errors())
def get_trend(
    name: Word, metric: Word, parts: Given, limit: Annotated[int, Query(ge=1, le=MOST_POINTS)] = 200
) -> Trend:
    """A metric, or what an expectation measured, over the newest runs of a scenario."""
    points = parts.history.trend(name, metric, limit)
    return Trend(name=name, metric=metric, points=[Point.model_validate(one) for one in points])


def _refuse_too_many(full: bool) -> None:
    if full:
        raise Failed(503, Problem("live events", "as many runs are watched as can be", next_step="try again"))


@lru_cache(maxsize=16)
def _compared(first: Path, second: Path, _first_stamp: int, _second_stamp: int) -> dict[str, Any]:
    """A comparison takes a second; it is the same until a run is judged again."""
    return curves.compare(first, second)


def _stamp(directory: Path) -> int:
    try:
        return (directory / "verdict.json").stat().st_mtime_ns
    except OSError:
        return 0
