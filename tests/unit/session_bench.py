"""A session and its server with a link between them that can be cut and frozen, for tests only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

from agents.config import Failures
from agents.session import Server, Session
from agents.wire import Message
from tests.unit.fake_agents import NETWORK

WAIT_S = 20
ADDRESS = f"{NETWORK}.60"
SERVER_PORT, LINK_PORT = 7000, 7100
FAILURES = Failures(silence_ns=300_000_000, probe_ns=20_000_000, probe_max_ns=100_000_000)


class _End(asyncio.Protocol):
    """One of the two sockets of a connection through the link."""

    transport: asyncio.Transport

    def __init__(self, link: Link, other: _End | None) -> None:
        self._link, self.other, self.near = link, other, other is None
        self.held = b""
        self.gone = self.stuck = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._link.ends.append(self)
        if self.other is None:
            self._link.accepted += 1
            self._link.reach(self)
        else:
            self.other.other = self
            self.other.flush()

    def data_received(self, data: bytes) -> None:
        self.held += data
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self._link.ends.remove(self)
        self.gone = True
        self.flush()

    def flush(self) -> None:
        """Let the other end have what has come in here, and hear of the end."""
        if self.other is None or self.stuck or self._link.frozen:
            return
        data, self.held = self.held, b""
        if data:
            self._link.forward(self.other, data)
        if self.gone and not self._link.half_open:
            self.other.transport.close()


class Link:
    """What stands between both; `ends` are all sockets that it has now, two per connection."""

    def __init__(self) -> None:
        self.ends: list[_End] = []
        self.accepted = 0
        self.frozen = False
        self.half_open = False
        """One end does not hear that the other has gone."""
        self._left_bytes: int | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def accept(self) -> _End:
        """For a listener."""
        return _End(self, None)

    def reach(self, near: _End) -> None:
        """Connect to the server, too."""

        async def connect() -> None:
            try:
                await asyncio.get_running_loop().create_connection(
                    lambda: _End(self, near), ADDRESS, SERVER_PORT
                )
            except OSError:
                near.transport.abort()

        task = asyncio.create_task(connect())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forward(self, end: _End, data: bytes) -> None:
        """Pass on what has come, or as much of it as still gets through."""
        if self._left_bytes is None:
            end.transport.write(data)
            return
        end.transport.write(data[: self._left_bytes])
        self._left_bytes -= len(data)
        if self._left_bytes <= 0:
            self.cut()

    def cut(self) -> None:
        """Break everything."""
        self._left_bytes = None
        for end in self.ends:
            end.transport.abort()

    def cut_after(self, size_bytes: int) -> None:
        """Break everything after so many more bytes, which may be amid a message."""
        self._left_bytes = size_bytes

    def freeze(self) -> None:
        """Nothing gets through, no end of a connection either; connections can be made, and stay."""
        self.frozen = True

    def thaw(self, *, old: bool = True) -> None:
        """Go on; without the `old` connections, which stand still for ever."""
        self.frozen = False
        for end in [*self.ends]:
            for one in (end, end.other):
                if one is not None and not old:
                    one.stuck = True
                elif one is not None:
                    one.flush()

    def near(self) -> list[asyncio.Transport]:
        """Where the session's sockets end."""
        return [end.transport for end in self.ends if end.near]


class Bench:
    """Both sides; `heard` is what each has been given to handle, `news` what the session reports."""

    def __init__(self, failures: Failures, **options: Any) -> None:
        self.link = Link()
        self.failures, self._options = failures, options
        self.heard: list[Message] = []
        self.told: list[Message] = []
        self.news: list[str] = []
        self.down_ns = self.up_ns = 0
        self.routers: list[bool] = []
        self.beats = 0
        self.session = self.new_session(1)
        self.server = self.new_server()

    def new_session(self, epoch: int) -> Session:
        """Another router's program."""
        return Session(
            ADDRESS,
            LINK_PORT,
            failures=self.failures,
            epoch=epoch,
            congestion_control="reno",
            handle=self._hear,
            on_up=self._up,
            on_down=self._down,
            on_restarted=self.news.append,
            **self._options,
        )

    def new_server(self) -> Server:
        """Another instance's program."""
        return Server(
            ADDRESS,
            SERVER_PORT,
            congestion_control="reno",
            handle=self.told.append,
            on_router=self.routers.append,
            beat=self._beat,
        )

    def _hear(self, message: Message) -> None:
        if message["op"] != "beat":
            self.heard.append(message)

    def _up(self) -> None:
        self.up_ns = time.monotonic_ns()
        self.news.append("up")

    def _down(self, cause: str) -> None:
        self.down_ns = time.monotonic_ns()
        self.news.append(f"down: {cause}")

    def _beat(self) -> Message:
        self.beats += 1
        return {"load": 7}

    async def close(self) -> None:
        self.session.close()
        self.server.close()
        self.link.half_open = False
        self.link.cut()
        await until(lambda: not self.link.ends)
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has happened."""
    while not condition():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.001)


@asynccontextmanager
async def opened(failures: Failures, **options: Any) -> AsyncIterator[Bench]:
    bench = Bench(failures, **options)
    async with await asyncio.get_running_loop().create_server(bench.link.accept, ADDRESS, LINK_PORT):
        await bench.server.listen()
        await bench.session.open()
        try:
            yield bench
        finally:
            await bench.close()


def play(
    scenario: Callable[[Bench], Coroutine[Any, Any, None]], failures: Failures = FAILURES, **options: Any
) -> None:
    """Run a scenario with both sides connected; what goes wrong in a callback counts, too."""
    wrong: list[dict[str, Any]] = []

    async def prepared() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
        async with asyncio.timeout(WAIT_S), opened(failures, **options) as bench:
            await scenario(bench)

    asyncio.run(prepared())
    assert wrong == []
