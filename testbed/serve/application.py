"""The application: endpoints, the page's files, one form for every error, and the guard around all of it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from testbed.errors import Problem
from testbed.serve import api_runs, api_scenarios
from testbed.serve.checks import Checks
from testbed.serve.exposition import Exposition
from testbed.serve.guard import COOKIE, Guard, same, session
from testbed.serve.history import History
from testbed.serve.indexer import Indexer
from testbed.serve.live import Live
from testbed.serve.parts import Failed, Given, Parts, answer, errors, errors_as_json, shown
from testbed.serve.processes import Processes
from testbed.serve.scenarios import Scenarios
from testbed.serve.shapes import ProblemOut, Token

PAGE: Final = Path(__file__).with_name("page")
log = logging.getLogger(__name__)


def make(
    runs: Path,
    scenarios: Path,
    *,
    token: str = "",
    names: Collection[str] = (),
    any_address: bool = False,
) -> tuple[ASGIApp, Parts]:
    """The application, and what it works with; `runs` is made if it is not there.

    Args:
        runs: the directory of run directories.
        scenarios: the directory of scenario files; only these can be run by name.
        token: what every request must bring; empty: nothing.
        names: of this server, beside those of the loopback interface.
        any_address: whether it may be called by any IP address, because it listens on all.
    """
    history = History(runs)
    parts = Parts(
        runs=runs,
        token=token,
        scenarios=Scenarios(scenarios, runs),
        checks=Checks(),
        history=history,
        indexer=Indexer(history),
        live=Live(runs),
        processes=Processes(runs),
    )
    app = FastAPI(
        title="Control plane of the testbed",
        version="1",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.parts = parts
    _page(app)
    counted = Exposition(app, parts)
    _metrics(app, counted)
    app.include_router(api_scenarios.router)
    app.include_router(api_runs.router)
    app.add_exception_handler(Failed, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(sqlite3.Error, _no_history)
    app.add_exception_handler(Exception, _ours)
    return Guard(counted, names=names, any_address=any_address, token=token), parts


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    parts.indexer.start()
    reading = asyncio.create_task(asyncio.to_thread(parts.scenarios.known))
    try:
        yield
    finally:
        parts.live.closing = True
        await reading
        parts.indexer.close()
        parts.history.close()


def _page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.post("/api/v1/session", status_code=204, tags=["session"], responses=errors(401, 415))
    async def log_in(given: Token, parts: Given) -> Response:
        """Trade the token for a cookie, which a page can use where it cannot send headers."""
        if parts.token and not same(given.token, parts.token):
            raise Failed(401, Problem("token", "is another one than this server's"))
        response = Response(status_code=204)
        response.set_cookie(COOKIE, session(parts.token), httponly=True, samesite="strict", path="/")
        return response

    app.mount("/page", StaticFiles(directory=PAGE), name="page")


def _metrics(app: FastAPI, counted: Exposition) -> None:
    @app.get("/metrics", tags=["metrics"], responses=errors_as_json(), response_class=PlainTextResponse)
    async def metrics(parts: Given) -> Response:
        """For Prometheus: of the server, and of the newest runs under the names of vLLM."""
        parts.live.keep(await asyncio.to_thread(parts.history.running))
        text = await asyncio.to_thread(counted.text)
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


async def _failed(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Failed)
    return answer(error.status, error.problems)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = [
        ProblemOut(where=".".join(str(part) for part in one["loc"]), found=str(one["msg"]))
        for one in error.errors()
    ]
    return answer(422, problems)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    problem = Problem(f"{request.method} {request.url.path[:200]}", error.detail, "see /api/v1/openapi.json")
    response = answer(error.status_code, [shown(problem, None)])
    response.headers.update(error.headers or {})
    return response


async def _no_history(_request: Request, error: Exception) -> JSONResponse:
    """The index cannot be written, as on a full disk; runs are not harmed by that."""
    problem = Problem("history", str(error), next_step="is there room where the runs lie?")
    return answer(503, [shown(problem, None)])


async def _ours(request: Request, error: Exception) -> JSONResponse:
    """A fault of the server: the log has it, the answer says so."""
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    found = "the server failed, which is its fault; its log says how"
    return answer(500, [shown(Problem(f"{request.method} {request.url.path[:200]}", found), None)])
