"""The client: sends each request at its time, streams the answer, notes what it saw.

Waits for a line `start <t0_ns>` on stdin (CLOCK_MONOTONIC), ends when every request has ended.

It speaks HTTP/1.1 by httptools (llhttp), one request at a time on each connection: a general client is five
times the work per request.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httptools
import msgspec

from agents import config
from agents.journal import Journal
from agents.prompts import prompt
from agents.stream import Connection

_REFUSED = (400, 409, 422, 429)
RECONNECT_S = 0.25


class Client:
    """All requests of a run, against one router."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._journal = Journal(settings.journal)
        self._address = settings.having("router")[0].address
        self._idle: list[_Asking] = []

    async def run(self) -> None:
        """Wait for the start, send everything, wait for the last answer or the deadline."""
        config.say_ready()
        start_ns = int(sys.stdin.readline().removeprefix("start "))  # nothing else goes on yet
        async with asyncio.TaskGroup() as tasks:
            for request in self._settings.requests:
                due_ns = start_ns + request.t_ns
                await asyncio.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
                tasks.create_task(self._send(request, start_ns + self._settings.deadline_ns))
        self._journal.close()
        for connection in self._idle:
            connection.transport.close()
        print("done", flush=True)

    async def _send(self, request: config.Request, deadline_ns: int) -> None:
        """One request from beginning to end; whatever happens, one line in the journal."""
        patience_s = self._settings.timeouts.client_ns / 1e9
        last_s = asyncio.get_running_loop().time() + (deadline_ns - time.monotonic_ns()) / 1e9
        seen = _Seen(time.monotonic_ns(), last_s, patience_s)
        try:
            async with seen.timer:
                await self._stream(request, seen)
        except OSError as error:  # a timeout, too
            if not seen.timer.expired():
                seen.fail(f"{type(error).__name__}: {error}")
            elif asyncio.get_running_loop().time() >= last_s:
                seen.fail("no end before the deadline")
            else:
                seen.fail(f"nothing from the router for {patience_s:g} s")
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
            **({"token_ids": seen.token_ids} if self._settings.compute is not None else {}),
        )

    async def _stream(self, request: config.Request, seen: _Seen) -> None:
        """Ask on a connection that is free, or on a new one."""
        body = {
            "model": self._settings.model,
            **self._prompt(request),
            "max_tokens": request.output_tokens,
            "stream": True,
            "request_id": request.id,
            "user": request.tenant,
        }
        if request.hash_ids:
            body["hash_ids"] = request.hash_ids
        while self._idle and self._idle[-1].transport.is_closing():
            self._idle.pop()
        if self._idle:
            connection = self._idle.pop()
        else:
            connection = await self._connect()
        try:
            await connection.ask(self._address, msgspec.json.encode(body), seen)
        except BaseException:
            connection.transport.abort()
            raise
        self._idle.append(connection)

    def _prompt(self, request: config.Request) -> dict[str, object]:
        """The prompt's token ids where somebody computes with them, else their number."""
        if self._settings.compute is None:
            return {"prompt_tokens": request.input_tokens}
        return {"prompt": prompt(self._settings, request)}

    async def _connect(self) -> _Asking:
        """A router that is being started again refuses connections; nothing is lost by another try."""
        while True:
            with suppress(ConnectionRefusedError):
                loop = asyncio.get_running_loop()
                return (await loop.create_connection(_Asking, self._address, config.HTTP_PORT))[1]
            await asyncio.sleep(RECONNECT_S)


class _Asking(Connection):
    """One connection to the router."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None

    async def ask(self, host: str, body: bytes, seen: _Seen) -> None:
        """Send one request and let `seen` know of what comes back; OSError when it breaks off."""
        self._seen, self._status, self._text = seen, 0, b""
        self._parser = httptools.HttpResponseParser(self)
        self._over = asyncio.get_running_loop().create_future()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{config.HTTP_PORT}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        await self._over

    def received(self, data: bytes) -> None:
        """Parse; nothing is expected while nothing is asked."""
        self._seen.alive()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(ConnectionError(f"the router sent no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The router closed the connection, or it broke."""
        self._break(exc or ConnectionResetError("the router closed the connection"))

    def _break(self, error: Exception) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)

    def on_headers_complete(self) -> None:
        """The answer begins."""
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A part of the answer: note each event that is complete, or keep what went wrong."""
        self._text += body
        if self._status == HTTPStatus.OK:
            *events, self._text = self._text.split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    self._seen.event(msgspec.json.decode(event[6:]))

    def on_message_complete(self) -> None:
        """The answer is over."""
        if self._status != HTTPStatus.OK:
            self._seen.fail(f"HTTP {self._status}: {self._text.decode(errors='replace')}")
            self._seen.state = "refused" if self._status in _REFUSED else "failed"
        if self._over is not None and not self._over.done():
            self._over.set_result(None)


class _Seen:
    """What came back for one request so far; `timer` ends at `last_s`, or after a silence of `patience_s`."""

    def __init__(self, sent_ns: int, last_s: float, patience_s: float) -> None:
        self.sent_ns = sent_ns
        self._last_s, self._patience_s = last_s, patience_s
        self.timer = asyncio.timeout_at(self._patient_until_s())
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.tokens = 0
        self.token_ids: list[int] = []
        """None where nobody computes them."""
        self.state: str | None = None
        self.cause: str | None = None

    def _patient_until_s(self) -> float:
        return min(self._last_s, asyncio.get_running_loop().time() + self._patience_s)

    def alive(self) -> None:
        """Something came from the router."""
        if not self.timer.expired():
            self.timer.reschedule(self._patient_until_s())

    def event(self, event: dict[str, Any]) -> None:
        """Take note of one server-sent event."""
        if "error" in event:
            self.fail(str(event["error"]["message"]))
            return
        self.last_ns = time.monotonic_ns()
        if self.first_ns is None:
            self.first_ns = self.last_ns
        self.tokens = event["usage"]["completion_tokens"]
        self.token_ids += event["choices"][0].get("token_ids", ())

    def fail(self, cause: str) -> None:
        """The request did not end well."""
        self.state, self.cause = "failed", cause


def main() -> None:
    """The program."""
    asyncio.run(Client(config.from_arguments()).run())
