"""Prefill and decode instances that speak the wire protocol and do nothing else, for tests only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agents.config import CONTROL_PORT, Config, Peer
from agents.wire import Channel, Message

NETWORK = f"127.{1 + os.getpid() // 254 % 250}.{1 + os.getpid() % 254}"
"""Loopback addresses of this process's own: agents listen on fixed ports."""


class FakeAgent:
    """One agent's end of its connection to the router; what comes in can be waited for."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.gone = asyncio.Event()
        self._channel: Channel | None = None

    def _accept(self) -> Channel:
        self._channel = Channel(self.messages.put_nowait, on_lost=self.gone.set)
        return self._channel

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Be there for the router."""
        loop = asyncio.get_running_loop()
        async with await loop.create_server(self._accept, self.peer.address, CONTROL_PORT):
            yield
            await self.die()

    def send(self, op: str, **fields: object) -> None:
        """Say something to the router."""
        assert self._channel is not None
        self._channel.send(op, **fields)

    async def die(self) -> None:
        """Close the connection, if the router ever came."""
        if self._channel is not None:
            self._channel.close()
            await self.gone.wait()


@asynccontextmanager
async def fake_agents(settings: Config) -> AsyncIterator[dict[str, FakeAgent]]:
    """All prefill and decode instances of a configuration, listening."""
    agents = {peer.name: FakeAgent(peer) for peer in settings.peers if peer.role in ("prefill", "decode")}
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
