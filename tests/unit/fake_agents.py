"""Prefill and decode instances that speak the wire protocol and do nothing else, for tests only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agents.config import CONTROL_PORT, Config, Peer
from agents.session import Server
from agents.wire import Message

NETWORK = f"127.{1 + os.getpid() // 254 % 250}.{1 + os.getpid() % 254}"
"""Loopback addresses of this process's own: agents listen on fixed ports."""


class FakeAgent:
    """One agent's end of its conversation with the router; what comes in can be waited for."""

    def __init__(self, peer: Peer, congestion_control: str) -> None:
        self.peer = peer
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.routers: list[bool] = []
        """Whether each router that has connected was a new one."""
        self.beat: Message = {"computing": False, "moved": [], "decoding": False}
        """What it adds to the answer to a beat."""
        self._congestion_control = congestion_control
        self._server: Server | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Be there for the router."""
        await self.start()
        try:
            yield
        finally:
            await self.die()

    async def start(self) -> None:
        """Run, as a new program."""
        self._server = Server(
            self.peer.address,
            CONTROL_PORT,
            congestion_control=self._congestion_control,
            handle=self.messages.put_nowait,
            on_router=self.routers.append,
            beat=lambda: self.beat,
        )
        await self._server.listen()

    def send(self, op: str, **fields: object) -> None:
        """Say something to the router."""
        assert self._server is not None
        self._server.send(op, **fields)

    def say(self, op: str, **fields: object) -> None:
        """Say something that is not said again."""
        assert self._server is not None
        self._server.say(op, **fields)

    async def die(self) -> None:
        """End the program: nobody listens any more."""
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0.01)


@asynccontextmanager
async def fake_agents(settings: Config) -> AsyncIterator[dict[str, FakeAgent]]:
    """All prefill and decode instances of a configuration, listening."""
    congestion_control = settings.transport.control_congestion_control
    agents = {
        peer.name: FakeAgent(peer, congestion_control)
        for peer in settings.peers
        if peer.role in ("prefill", "decode")
    }
    async with AsyncExitStack() as stack:
        for agent in agents.values():
            await stack.enter_async_context(agent.listening())
        yield agents


async def serve_all(agents: dict[str, FakeAgent], interval: int) -> None:
    """Answer every prefill at once, and let decode tell its tokens in steps of `interval`."""
    lengths: dict[int, int] = {}

    async def prefill(agent: FakeAgent) -> None:
        while True:
            message = await agent.messages.get()
            agent.send("prefilled", id=message["id"])
            decode = agents[message["decode"]]
            while message["id"] not in lengths:
                take(await decode.messages.get())
            whole = lengths[message["id"]]
            for total in sorted({1, *range(interval, whole, interval), whole}):
                decode.send("tokens", items=[[message["id"], total, total == whole]])
                await asyncio.sleep(0)

    def take(message: Message) -> None:
        if message["op"] == "expect":
            lengths[message["id"]] = message["output_tokens"]

    async with asyncio.TaskGroup() as tasks:
        for agent in agents.values():
            if agent.peer.role == "prefill":
                tasks.create_task(prefill(agent))
