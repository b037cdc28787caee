"""The client: sends each request at its time, streams the answer, notes what it saw.

Waits for a line `start <t0_ns>` on stdin (CLOCK_MONOTONIC), ends when every request has ended.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import httpx
import msgspec

from agents import config
from agents.journal import Journal

_REFUSED = (400, 409, 422, 429)


class Client:
    """All requests of a run, against one router."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(Path(settings.journal))
        router = settings.having("router")[0]
        self._http = httpx.AsyncClient(
            base_url=f"http://{router.address}:{config.HTTP_PORT}",
            timeout=None,  # noqa: S113 - the run's deadline bounds every request
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    async def run(self) -> None:
        """Wait for the start, send everything, wait for the last answer or the deadline."""
        config.say_ready()
        line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        start_ns = int(line.removeprefix("start "))
        async with asyncio.TaskGroup() as tasks:
            for request in self._settings.requests:
                due_ns = start_ns + request.t_ns
                await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
                tasks.create_task(self._send(request, start_ns + self._settings.deadline_ns))
        print("done", flush=True)

    async def _send(self, request: config.Request, deadline_ns: int) -> None:
        """One request from beginning to end; whatever happens, one line in the journal."""
        seen = _Seen(time.monotonic_ns())
        try:
            async with asyncio.timeout((deadline_ns - seen.sent_ns) / 1e9):
                await self._stream(request, seen)
        except TimeoutError:
            seen.fail("no end before the deadline")
        except httpx.HTTPError as error:
            seen.fail(f"{type(error).__name__}: {error}")
        if seen.state is None:
            if seen.tokens == request.output_tokens:
                seen.state = "completed"
            else:
                seen.fail(f"stream ended after {seen.tokens} of {request.output_tokens} tokens")
        self._journal.note(
            "request",
            seen.sent_ns,
            id=request.id,
            t_first_ns=seen.first_ns,
            t_last_ns=seen.last_ns,
            t_end_ns=time.monotonic_ns(),
            tokens=seen.tokens,
            state=seen.state,
            cause=seen.cause,
        )

    async def _stream(self, request: config.Request, seen: _Seen) -> None:
        body = {
            "model": self._settings.model,
            "prompt_tokens": request.input_tokens,
            "max_tokens": request.output_tokens,
            "stream": True,
            "request_id": request.id,
        }
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                seen.fail(f"HTTP {response.status_code}: {text}")
                seen.state = "refused" if response.status_code in _REFUSED else "failed"
                return
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    seen.event(msgspec.json.decode(line[6:]))


class _Seen:
    """What came back for one request so far."""

    def __init__(self, sent_ns: int) -> None:
        self.sent_ns = sent_ns
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.tokens = 0
        self.state: str | None = None
        self.cause: str | None = None

    def event(self, event: dict[str, dict[str, int]]) -> None:
        """Take note of one server-sent event."""
        if "error" in event:
            self.fail(str(event["error"]["message"]))
            return
        self.last_ns = time.monotonic_ns()
        if self.first_ns is None:
            self.first_ns = self.last_ns
        self.tokens = event["usage"]["completion_tokens"]

    def fail(self, cause: str) -> None:
        """The request did not end well."""
        self.state, self.cause = "failed", cause


if __name__ == "__main__":
    asyncio.run(Client(config.from_arguments()).run())
