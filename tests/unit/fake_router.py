"""A router of a few lines for the client's tests: one answer per request, in whatever pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass


@dataclass
class Exchange:
    """One request's body and the way back to who sent it."""

    body: bytes
    writer: asyncio.StreamWriter
    begun: bool = False

    def answer(self, status: int, content: bytes) -> None:
        """The whole answer."""
        self.writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(content), content))

    def piece(self, content: bytes, *, end: bool = False) -> None:
        """The next piece of a stream, `end`: the last one."""
        head = b"" if self.begun else b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        self.begun = True
        self.writer.write(head + b"%x\r\n%b\r\n" % (len(content), content) + (b"0\r\n\r\n" if end else b""))


Answer = Callable[[Exchange], Awaitable[None]]


@asynccontextmanager
async def serving(address: str, port: int, answer: Answer, late_s: float = 0.0) -> AsyncIterator[None]:
    """Listen, from `late_s` seconds on; `answer` is called with each request."""
    open_tasks: set[asyncio.Task[None]] = set()

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                await answer(Exchange(await reader.readexactly(size), writer))

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(work(reader, writer))
        open_tasks.add(task)
        await asyncio.wait({task})
        writer.close()

    async def listen() -> asyncio.Server:
        await asyncio.sleep(late_s)
        return await asyncio.start_server(accept, address, port)

    listening = asyncio.create_task(listen())
    if not late_s:
        await listening
    yield
    async with await listening:
        for task in open_tasks:
            task.cancel()
        await asyncio.sleep(0.01)
