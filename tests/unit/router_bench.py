"""The router's HTTP front in this process, with agents that speak the wire protocol, for tests only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from agents import router
from tests.unit.agent_config import make_config
from tests.unit.fake_agents import NETWORK, FakeAgent, fake_agents

WAIT_S = 10
URL = "/v1/completions"

Agents = dict[str, FakeAgent]
Scenario = Callable[[httpx.AsyncClient, Agents], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(journal: Path, **changes: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Agents]]:
    """A client of a fresh router, and all instances that it has; `changes` of its configuration."""
    settings = msgspec.structs.replace(make_config("router", journal, NETWORK), **changes)
    app = router.build(settings)
    async with (
        fake_agents(settings) as agents,
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as http,
    ):
        yield http, agents
